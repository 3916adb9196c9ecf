package replica

import (
	"context"

	"github.com/attestd/attestd/appliance/index"
)

// The methods of a snapshot, each under guard.

func (g guarded) Transfers(ctx context.Context, q index.TransferQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Transfers(ctx, q) })
}

func (g guarded) Packets(ctx context.Context, q index.PacketQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Packets(ctx, q) })
}

func (g guarded) Tokens(ctx context.Context, q index.TokenQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Tokens(ctx, q) })
}

func (g guarded) Chains(ctx context.Context, q index.ChainQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Chains(ctx, q) })
}

func (g guarded) Channels(ctx context.Context, q index.ChannelQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Channels(ctx, q) })
}

func (g guarded) Clients(ctx context.Context, q index.ClientQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Clients(ctx, q) })
}

func (g guarded) Connections(ctx context.Context, q index.ConnectionQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Connections(ctx, q) })
}

func (g guarded) Stakes(ctx context.Context, q index.StakeQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Stakes(ctx, q) })
}

func (g guarded) Instructions(ctx context.Context, q index.InstructionQuery) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Instructions(ctx, q) })
}

func (g guarded) TransfersDaily(ctx context.Context, q index.DayQuery) ([]index.DayCount, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.DayCount, error) { return s.TransfersDaily(ctx, q) })
}

func (g guarded) PacketsDaily(ctx context.Context, q index.DayQuery) ([]index.DayCount, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.DayCount, error) { return s.PacketsDaily(ctx, q) })
}

func (g guarded) TransfersByChain(ctx context.Context, q index.DayQuery) ([]index.RouteDayCount, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.RouteDayCount, error) { return s.TransfersByChain(ctx, q) })
}

func (g guarded) PacketsByChain(ctx context.Context, q index.DayQuery) ([]index.RouteDayCount, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.RouteDayCount, error) { return s.PacketsByChain(ctx, q) })
}

func (g guarded) Latency(ctx context.Context, q index.LatencyQuery) (index.Latency, error) {
	return guard(ctx, g, func(s *snapshot) (index.Latency, error) { return s.Latency(ctx, q) })
}

func (g guarded) Stats(ctx context.Context) ([]index.Stat, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Stat, error) { return s.Stats(ctx) })
}

func (g guarded) Health(ctx context.Context) ([]index.HealthCheck, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.HealthCheck, error) { return s.Health(ctx) })
}

func (g guarded) Status(ctx context.Context) (index.Status, error) {
	return guard(ctx, g, func(s *snapshot) (index.Status, error) { return s.Status(ctx) })
}

func (g guarded) Position(ctx context.Context, name string) (position string, found bool, err error) {
	position, err = guard(ctx, g, func(s *snapshot) (string, error) {
		position, found, err = s.Position(ctx, name)
		return position, err
	})
	return position, found, err
}

func (g guarded) Sample(ctx context.Context, t *index.Type, n int) ([]index.Row, error) {
	return guard(ctx, g, func(s *snapshot) ([]index.Row, error) { return s.Sample(ctx, t, n) })
}

// Related cannot return an error, so it panics with damage, which View turns into an error. Tables in memory need no
// guard.
func (g guarded) Related(row index.Row, relation index.Relation) index.Row {
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

func (g guarded) Unfinished(ctx context.Context, behind index.Row, yield func(index.Row) error) error {
	return guardEach(ctx, g, yield, func(s *snapshot, yield func(index.Row) error) error {
		return s.Unfinished(ctx, behind, yield)
	})
}

func (g guarded) Unverified(ctx context.Context, yield func(index.Unverified) error) error {
	return guardEach(ctx, g, yield, func(s *snapshot, yield func(index.Unverified) error) error {
		return s.Unverified(ctx, yield)
	})
}

func (g guarded) Each(ctx context.Context, t *index.Type, yield func(index.Row) error) error {
	return guardEach(ctx, g, yield, func(s *snapshot, yield func(index.Row) error) error {
		return s.Each(ctx, t, yield)
	})
}
