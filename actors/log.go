package actors

import (
	"context"
	"log/slog"
)

// safeLog is the user's log handler, whose panics are ignored: it runs on the
// router's and the pump's goroutines, which a panic would take down, and there is
// nowhere left to tell of it.
type safeLog struct{ h slog.Handler }

// Enabled implements slog.Handler.
func (l safeLog) Enabled(ctx context.Context, level slog.Level) (on bool) {
	defer func() { _ = recover() }()
	return l.h.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (l safeLog) Handle(ctx context.Context, r slog.Record) error {
	defer func() { _ = recover() }()
	return l.h.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l safeLog) WithAttrs(as []slog.Attr) slog.Handler { return safeLog{l.h.WithAttrs(as)} }

// WithGroup implements slog.Handler.
func (l safeLog) WithGroup(name string) slog.Handler { return safeLog{l.h.WithGroup(name)} }
