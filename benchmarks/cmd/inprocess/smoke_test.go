package main

import "testing"

// Everything once, so that it can't rot.
func TestSmoke(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), []string{"-smoke"}); err != nil {
		t.Fatal(err)
	}
}
