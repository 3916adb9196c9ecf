package setup

import (
	"context"
	"testing"
)

// A question is no reason to stay when a person, or systemd, wants the end.
func TestAQuestionCanBeInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	asked := func() (string, error) {
		cancel()
		<-forever // nobody answers
		return "an answer", nil
	}
	if answer, err := unlessInterrupted(ctx, asked); err == nil || answer != "" {
		t.Errorf("%q, %v", answer, err)
	}
}
