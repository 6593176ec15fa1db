package measure

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Table prints rows, the first of which is the head, as a Markdown table that
// reads well as it is.
func Table(w io.Writer, rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell), 3)
		}
	}
	line := func(row []string) {
		for i, cell := range row {
			_, _ = fmt.Fprintf(w, "| %s%s ", cell, strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)))
		}
		_, _ = fmt.Fprintln(w, "|")
	}
	line(rows[0])
	for _, n := range width {
		_, _ = fmt.Fprint(w, "|", strings.Repeat("-", n+2))
	}
	_, _ = fmt.Fprintln(w, "|")
	for _, row := range rows[1:] {
		line(row)
	}
	_, _ = fmt.Fprintln(w)
}
