package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/keylanes/keylanes/transport"
	"github.com/keylanes/keylanes/transport/memory"
)

// publish puts the numbers 1 to n on q, their keys in turn.
func publish(q *memory.Queue, n int, key string, keys int) error {
	for i := 1; i <= n; i++ {
		m := transport.Message{ID: fmt.Sprint(key, "-", i), Key: fmt.Sprint(key, "-", i%keys), Body: []byte(strconv.Itoa(i))}
		if err := q.Publisher().Publish(context.Background(), m); err != nil {
			return err
		}
	}
	return nil
}
