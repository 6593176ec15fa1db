package keylanes_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The documents name the test that shows each promise. Every test that they name
// exists, and so does every file that they link to.
func TestDocumentsNameWhatExists(t *testing.T) {
	t.Parallel()
	var source bytes.Buffer
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		source.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w*)`")
	links := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	docs, err := filepath.Glob("docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	named := 0
	for _, doc := range append(docs, "README.md", "CONTRIBUTING.md") {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range names.FindAllSubmatch(text, -1) {
			named++
			if !bytes.Contains(source.Bytes(), []byte("func "+string(m[1])+"(")) {
				t.Errorf("%s names %s, which doesn't exist", doc, m[1])
			}
		}
		for _, m := range links.FindAllSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), string(m[1]))); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			}
		}
	}
	if named < 100 {
		t.Errorf("only %d tests are named", named)
	}
}
