package postgres

import "context"

// ReadThenConfirm reads the head, calls between, and then confirms the head as a reader does before it answers.
func (s *Store) ReadThenConfirm(ctx context.Context, between func()) error {
	h, err := s.readHead(ctx)
	if err != nil {
		return err
	}
	between()
	return s.confirm(ctx, h)
}
