package replica

import (
	"context"

	"github.com/attestd/attestd/appliance/index"
)

// The methods of a snapshot, each under guard.

func (g guardedSnapshot) Transfers(ctx context.Context, q index.TransferQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Transfers(ctx, q) })
}

func (g guardedSnapshot) Packets(ctx context.Context, q index.PacketQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Packets(ctx, q) })
}

func (g guardedSnapshot) Tokens(ctx context.Context, q index.TokenQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Tokens(ctx, q) })
}

func (g guardedSnapshot) Chains(ctx context.Context, q index.ChainQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Chains(ctx, q) })
}

func (g guardedSnapshot) Channels(ctx context.Context, q index.ChannelQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Channels(ctx, q) })
}

func (g guardedSnapshot) Clients(ctx context.Context, q index.ClientQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Clients(ctx, q) })
}

func (g guardedSnapshot) Connections(ctx context.Context, q index.ConnectionQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Connections(ctx, q) })
}

func (g guardedSnapshot) Stakes(ctx context.Context, q index.StakeQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Stakes(ctx, q) })
}

func (g guardedSnapshot) Instructions(ctx context.Context, q index.InstructionQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Instructions(ctx, q) })
}

func (g guardedSnapshot) TransfersDaily(ctx context.Context, q index.DayQuery) ([]index.DayCount, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.DayCount, error) { return s.TransfersDaily(ctx, q) })
}

func (g guardedSnapshot) PacketsDaily(ctx context.Context, q index.DayQuery) ([]index.DayCount, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.DayCount, error) { return s.PacketsDaily(ctx, q) })
}

func (g guardedSnapshot) TransfersByChain(ctx context.Context, q index.DayQuery) ([]index.RouteDayCount, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.RouteDayCount, error) { return s.TransfersByChain(ctx, q) })
}

func (g guardedSnapshot) PacketsByChain(ctx context.Context, q index.DayQuery) ([]index.RouteDayCount, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.RouteDayCount, error) { return s.PacketsByChain(ctx, q) })
}

func (g guardedSnapshot) Latency(ctx context.Context, q index.LatencyQuery) (index.Latency, error) {
	return guard(ctx, g, func(s *snapshot) (index.Latency, error) { return s.Latency(ctx, q) })
}

func (g guardedSnapshot) Stats(ctx context.Context) ([]index.Stat, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Stat, error) { return s.Stats(ctx) })
}

func (g guardedSnapshot) Health(ctx context.Context) ([]index.HealthCheck, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.HealthCheck, error) { return s.Health(ctx) })
}

func (g guardedSnapshot) Status(ctx context.Context) (index.Status, error) {
	return guard(ctx, g, func(s *snapshot) (index.Status, error) { return s.Status(ctx) })
}

func (g guardedSnapshot) Position(ctx context.Context, name string) (position string, found bool, err error) {
	position, err = guard(ctx, g, func(s *snapshot) (string, error) {
		position, found, err = s.Position(ctx, name)
		return position, err
	})
	return position, found, err
}

func (g guardedSnapshot) Sample(ctx context.Context, t *index.Type, n int) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Sample(ctx, t, n) })
}

// Related cannot return an error, so it panics with damage, which View turns into an error. Tables in memory need no
// guard.
func (g guardedSnapshot) Related(row index.Row, relation index.Relation) index.Row {
	if relation.To != index.PacketType {
		return g.s.Related(row, relation)
	}
	found, err := guard(context.Background(), g, func(s *snapshot) (index.Row, error) {
		return s.Related(row, relation), nil
	})
	if err != nil {
		panic(damage(err.Error()))
	}
	return found
}

func (g guardedSnapshot) Unfinished(ctx context.Context, behind index.Row, yield func(index.Row) error) error {
	return guardEach(ctx, g, yield, func(s *snapshot, yield func(index.Row) error) error {
		return s.Unfinished(ctx, behind, yield)
	})
}

func (g guardedSnapshot) Unverified(ctx context.Context, yield func(index.Unverified) error) error {
	return guardEach(ctx, g, yield, func(s *snapshot, yield func(index.Unverified) error) error {
		return s.Unverified(ctx, yield)
	})
}

func (g guardedSnapshot) Each(ctx context.Context, t *index.Type, yield func(index.Row) error) error {
	return guardEach(ctx, g, yield, func(s *snapshot, yield func(index.Row) error) error {
		return s.Each(ctx, t, yield)
	})
}
