package setup

import (
	"context"
	"testing"
)

// A prompt returns when the command is interrupted, by Ctrl-C or by systemd.
func TestAQuestionCanBeInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	asked := func() (string, error) {
		cancel()
		<-forever // no answer comes
		return "an answer", nil
	}
	if answer, err := unlessInterrupted(ctx, asked); err == nil || answer != "" {
		t.Errorf("%q, %v", answer, err)
	}
}
