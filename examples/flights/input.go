package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// January2013 is the built-in input; see data/ATTRIBUTION.md.
//
//go:embed data/flights-2013-01.jsonl.gz
var january2013 []byte

// defaultKey is the aircraft.
const defaultKey = "tailnum"

// builtIn reads the built-in flights, once; nobody changes them.
var builtIn = sync.OnceValues(func() ([]event, error) {
	return readEvents(bytes.NewReader(january2013), "the built-in flights", defaultKey)
})

// maxLine bounds a line of the input: one message's body.
const maxLine = 1 << 20

// event is one line of the input.
type event struct {
	key  string // "" is keyless
	body []byte
}

// readInput reads the built-in file, or the one at path.
func readInput(path, field string) ([]event, error) {
	if path == "" {
		if field == defaultKey {
			return builtIn()
		}
		return readEvents(bytes.NewReader(january2013), "the built-in flights", field)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("-input %s: %w", path, errors.Unwrap(err))
	}
	defer f.Close()
	return readEvents(f, "-input "+path, field)
}

// readEvents reads JSON lines, gzipped or not, and takes each line's key from
// the field of that name. Blank lines are skipped. A line that is no JSON object
// has no key; it is published all the same, and won't decode.
func readEvents(r io.Reader, name, field string) ([]event, error) {
	in := bufio.NewReader(r)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		in = bufio.NewReader(z)
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	var events []event
	keyed, objects := 0, 0
	n := 0
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		key, ok := keyOf(line, field)
		e := event{key: key, body: bytes.Clone(line)}
		if ok {
			objects++
		}
		if key != "" {
			keyed++
		}
		events = append(events, e)
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return nil, fmt.Errorf("%s: line %d is longer than %d bytes", name, n+1, maxLine)
		}
		return nil, fmt.Errorf("%s: after line %d: %w", name, n, err)
	}
	if len(events) == 0 {
		return nil, fmt.Errorf("%s: it has no lines", name)
	}
	if objects == 0 {
		return nil, fmt.Errorf("%s: no line is a JSON object: it takes one on each line, gzipped or not", name)
	}
	if keyed == 0 {
		return nil, fmt.Errorf("%s: no line has a value in field %q: choose another with -key", name, field)
	}
	return events, nil
}

// keyOf gives the value of a line's field: a string as it is, anything else as
// JSON. "NA", "", null and a missing field mean unknown. ok says that the line is a
// JSON object.
func keyOf(line []byte, field string) (key string, ok bool) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(line, &fields) != nil {
		return "", false
	}
	raw := fields[field]
	if json.Unmarshal(raw, &key) != nil {
		key = string(raw)
	}
	if key == "NA" || key == "null" {
		key = ""
	}
	return key, true
}
