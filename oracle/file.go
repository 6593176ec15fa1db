package oracle

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"time"
	"unicode/utf8"
)

// format is the first line's mark of a log file.
const format = "keylanes-oracle-log-1"

// Create returns a log that streams to a new file: a line of JSON for each
// record, written before the call that records it returns, so that a killed
// process loses nothing (a machine that loses power may). It fails when the
// file exists: a file is one process's life. Close it; Load reads it.
func Create(path string) (*Log, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fmt.Errorf("oracle: create log: %w", err)
	}
	l := New()
	l.file = f
	head, err := json.Marshal(header{Format: format, Process: l.processes[0].name, At: l.baseNanos})
	if err == nil {
		_, err = f.Write(append(head, '\n'))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("oracle: create log %s: %w", path, err), f.Close())
	}
	return l, nil
}

// processName tells processes apart, also when they run on several machines.
func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return host + "-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
}

// Close writes the closing record, which says that the process ended in good
// order, and returns the first error of the file. What is recorded afterwards
// is dropped. For a log in memory it does nothing. It may be called again.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil || l.file == devNull {
		return l.err
	}
	l.write(&entry{at: l.now(), kind: closed})
	if err := l.file.Close(); l.err == nil {
		l.err = err
	}
	l.file = devNull
	return l.err
}

// devNull stands for the file of a closed log.
var devNull = &os.File{}

// Err is the first error of the log's file: records are missing from there on.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

type header struct {
	Format  string `json:"format"`
	Process string `json:"process"`
	At      int64  `json:"at"`
}

// record is the JSON form of an entry. Ids and keys that aren't UTF-8 are in
// the fields that end in hex, since JSON would mangle them.
type record struct {
	At      int64  `json:"at"` // unix nanoseconds
	Kind    string `json:"kind"`
	Run     uint64 `json:"run,omitempty"` // for "held": how many
	Attempt int32  `json:"attempt,omitempty"`
	ID      string `json:"id,omitempty"`
	Key     string `json:"key,omitempty"`
	IDHex   string `json:"id_hex,omitempty"`
	KeyHex  string `json:"key_hex,omitempty"`
}

// write appends e to the file in one call. l.mu is held.
func (l *Log) write(e *entry) {
	if l.err != nil || l.file == devNull {
		return
	}
	b := append(l.line[:0], `{"at":`...)
	b = strconv.AppendInt(b, e.at, 10)
	b = append(b, `,"kind":"`...)
	b = append(b, e.kind.String()...)
	b = append(b, '"')
	if e.run != 0 {
		b = append(b, `,"run":`...)
		b = strconv.AppendUint(b, e.run, 10)
	}
	if e.attempt != 0 {
		b = append(b, `,"attempt":`...)
		b = strconv.AppendInt(b, int64(e.attempt), 10)
	}
	b = appendField(b, "id", e.id)
	b = appendField(b, "key", e.key)
	l.line = append(b, '}', '\n')
	if _, err := l.file.Write(l.line); err != nil {
		l.err = fmt.Errorf("oracle: write log: %w", err)
	}
}

func appendField(b []byte, name, s string) []byte {
	if s == "" {
		return b
	}
	b = append(append(b, `,"`...), name...)
	if !utf8.ValidString(s) {
		b = append(b, `_hex":"`...)
		return append(hex.AppendEncode(b, []byte(s)), '"')
	}
	b = append(b, `":`...)
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			quoted, _ := json.Marshal(s) // a string always marshals
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// Load reads the logs of several processes and merges them by time into one
// that can be checked. A last line that was cut off is dropped; any other line
// that can't be read is an error that names the file and the line.
func Load(paths ...string) (*Log, error) {
	l := New()
	l.processes = nil
	var all []entry
	for i, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("oracle: load log: %w", err)
		}
		es, p, most, err := readLog(f, uint16(i))
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("oracle: load log %s: %w", path, err)
		}
		all = append(all, es...)
		l.processes = append(l.processes, p)
		l.most = max(l.most, most)
	}
	// Stable: what one process recorded keeps its order.
	sort.SliceStable(all, func(i, j int) bool { return all[i].at < all[j].at })
	for _, e := range all {
		l.keep(e)
	}
	l.n = uint64(len(all))
	return l, nil
}

func readLog(r io.Reader, index uint16) (es []entry, p process, most int, err error) {
	in := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			// A line without its end was cut off when the process died.
			if n == 1 {
				return nil, p, 0, errors.New("the first line is missing: not a log of Create's")
			}
			return es, p, most, nil
		}
		if err != nil {
			return nil, p, 0, err
		}
		if n == 1 {
			var h header
			if err := strict(line, &h); err != nil || h.Format != format {
				return nil, p, 0, fmt.Errorf("line 1: not a log of Create's (want format %q)", format)
			}
			p.name = h.Process
			continue
		}
		e, err := parse(line)
		if err != nil {
			return nil, p, 0, fmt.Errorf("line %d: %w", n, err)
		}
		e.process = index
		switch e.kind {
		case heldMost:
			most = max(most, int(e.run))
		case closed:
			p.ended = true
		default:
			if k := len(es); k > 0 && e.at < es[k-1].at {
				return nil, p, 0, fmt.Errorf("line %d: its time is before the line's above", n)
			}
			es = append(es, e)
		}
	}
}

func parse(line []byte) (entry, error) {
	var r record
	if err := strict(line, &r); err != nil {
		return entry{}, err
	}
	e := entry{at: r.At, run: r.Run, attempt: r.Attempt, id: r.ID, key: r.Key}
	for k, name := range kindNames {
		if k > 0 && name == r.Kind {
			e.kind = Kind(k)
		}
	}
	if e.kind == 0 {
		return entry{}, fmt.Errorf("unknown kind %q", r.Kind)
	}
	for _, f := range []struct {
		from string
		to   *string
	}{{r.IDHex, &e.id}, {r.KeyHex, &e.key}} {
		if f.from != "" {
			b, err := hex.DecodeString(f.from)
			if err != nil {
				return entry{}, err
			}
			*f.to = string(b)
		}
	}
	return e, nil
}

func strict(line []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	return d.Decode(into)
}
