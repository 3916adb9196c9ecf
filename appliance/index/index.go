// Package index is the read side: rows of cross-chain transfers, packets, tokens, chains, channels, clients and connections,
// the queries over them and the statistics. In this module an index is such a collection of rows, and nothing else.
//
// The Go structs of the rows are in types.go, their encoding in row.go and encode.go; a store keeps encoded rows as they are.
package index

import (
	"context"
	"time"
	"unicode/utf8"
)

// Index answers queries over rows, and takes rows. Package store/replica implements it.
// All methods are safe for concurrent use, and readers never wait for writers.
type Index interface {
	// View calls read with the index as it is now. The snapshot and every Row it returned are valid only until
	// read returns; Row.Clone outlives it. The error is read's own, CodeReplicaUnavailable where storage fails,
	// or CodeTimeout where ctx has ended.
	View(ctx context.Context, read func(Snapshot) error) error
	// Write upserts a batch: all of it or nothing. When it returns nil the batch is on disk, and every later View sees
	// it. A row that the index already has in the same form changes nothing; see Written.
	//
	// Rows are upserted in their order, by the key of their type: packets by packet_hash, transfers by
	// packet_hash and transfer_index, chains by universal_chain_id, tokens by universal_chain_id and denom,
	// channels, clients and connections by their (source) universal_chain_id and id. An upsert replaces the whole
	// row: members that are null in the new one are null afterwards.
	//
	// Where another row of the type has the same sort_order, the later one is kept under sort_order~key (see
	// TieBreak), so that sort_order alone is a total order and no page boundary falls between equals.
	//
	// Errors: CodeInvalidField for a row that is not of one of RowTypes or has no key; CodeReplicaUnavailable.
	Write(ctx context.Context, b Batch) (Written, error)
}

// Snapshot is an Index at one moment: all that a store implements, in the parts that its readers use. A reader that needs some
// methods of several parts declares them as an interface of its own, as packages follower and dataset do.
//
// Its methods are safe for concurrent use. Those that take a query return CodeInvalidField, with Field set, for an invalid query,
// and all that take a context return CodeTimeout when that ends.
type Snapshot interface {
	Lists   // the rows of GraphQL
	Figures // the computed fields of GraphQL
	Scans   // following, verifying and exporting
	State   // commands, metrics, and whoever goes on where an earlier batch has ended
}

// Lists are the pages of rows that clients ask for. They come in the order of the query's Page: newest first by default, which is
// sort_order descending, bytewise.
type Lists interface {
	Transfers(ctx context.Context, q TransferQuery) ([]Row, error)       // of TransferType
	Packets(ctx context.Context, q PacketQuery) ([]Row, error)           // of PacketType
	Tokens(ctx context.Context, q TokenQuery) ([]Row, error)             // of TokenType, by rank, those without one last, then chain and denom
	Chains(ctx context.Context, q ChainQuery) ([]Row, error)             // of ChainType; its sort order is universal_chain_id
	Channels(ctx context.Context, q ChannelQuery) ([]Row, error)         // of ChannelType
	Clients(ctx context.Context, q ClientQuery) ([]Row, error)           // of ClientType
	Connections(ctx context.Context, q ConnectionQuery) ([]Row, error)   // of ConnectionType
	Instructions(ctx context.Context, q InstructionQuery) ([]Row, error) // of InstructionType, made of packets; those of a packet from the last one on
	Stakes(ctx context.Context, q StakeQuery) ([]Row, error)             // of BondType, UnbondType, WithdrawalType or DustWithdrawalType, made of packets

	// Related returns the row that a relation of row's type leads to: a transfer's source_chain, the packet that
	// has its traces, a trace's chain. A chain or packet that is not in the index is a row with nothing but its
	// key; any other relation that leads nowhere is the zero Row. It is a look-up in memory, for PacketType one
	// on disk.
	Related(row Row, r Relation) Row
}

// Figures are what is computed over rows.
type Figures interface {
	// Stats returns total_transfers and total_packets.
	Stats(ctx context.Context) ([]Stat, error)
	// TransfersDaily and PacketsDaily count by the UTC day of sending, newest day first, days without any left out.
	TransfersDaily(ctx context.Context, q DayQuery) ([]DayCount, error)
	PacketsDaily(ctx context.Context, q DayQuery) ([]DayCount, error)
	// TransfersByChain and PacketsByChain count by day and pair of chains, newest day first, then by chains.
	TransfersByChain(ctx context.Context, q DayQuery) ([]RouteDayCount, error)
	PacketsByChain(ctx context.Context, q DayQuery) ([]RouteDayCount, error)
	// Latency returns the percentiles of how long packets took, by nearest rank, each at most LatencyError from the
	// exact one. The chains of the query need not be given.
	Latency(ctx context.Context, q LatencyQuery) (Latency, error)
	// Health returns one check per network that has chains: mainnet, then testnet.
	Health(ctx context.Context) ([]HealthCheck, error)
}

// Scans read many rows. An error of yield ends them, and is returned.
type Scans interface {
	// Each calls yield with each row of a type, in the order of export: by sort_order ascending, bytewise (chains
	// and tokens by key).
	Each(ctx context.Context, t *Type, yield func(Row) error) error
	// Unfinished calls yield with each packet that is neither acknowledged nor timed out, in an order of the index's own: with those
	// behind one that another snapshot has yielded, or with all where that is the zero Row.
	Unfinished(ctx context.Context, behind Row, yield func(Row) error) error
	// Unverified calls yield with each row that is kept apart, by type and key. An index that serves them returns them from
	// the other methods, too.
	Unverified(ctx context.Context, yield func(Unverified) error) error
	// Sample returns n different rows chosen at random, of PacketType or TransferType, in any order: all of them where
	// there are not more than n, and in rare cases fewer than n.
	//
	// Errors: CodeInvalidField for other types.
	Sample(ctx context.Context, t *Type, n int) ([]Row, error)
}

// State tells of the index itself.
type State interface {
	// Status tells what the index holds and how fresh it is.
	Status(ctx context.Context) (Status, error)
	// Position returns what a Batch has last set under that name, or "" and false.
	Position(ctx context.Context, name string) (string, bool, error)
}

// StatusOf returns the Status of an index as it is now.
func StatusOf(ctx context.Context, idx Index) (status Status, err error) {
	err = idx.View(ctx, func(s Snapshot) error {
		status, err = s.Status(ctx)
		return err
	})
	return status, err
}

// Batch is what Index.Write writes at once.
type Batch struct {
	Rows []Row // of RowTypes
	// Positions are set with the rows, so that whoever reads an upstream or a file knows after a crash how far it has
	// come. An empty value removes a position.
	Positions map[string]string
	// Index is the Status.ID of the index that the batch goes on from: one that was made anew meanwhile refuses it
	// (appliance.CodeReplicaUnavailable), for it lacks what the positions say is there. Empty means any.
	Index string
	// Unverified are packets and transfers to be kept apart, one for each key: a later one replaces an earlier one, and
	// a row with the key among the Rows of a later batch removes it, even if that row changes nothing else. They are
	// written after Rows: of a key that is in both, the row is served and the unverified one is kept apart. A row that the
	// index already has for the key is served further on; where unverified rows are served, it is hidden until they no
	// longer are. Since is ignored: the index notes when the key was first kept apart.
	//
	// Errors: CodeInvalidField for other types.
	Unverified []Unverified
	// Withdrawn are keys whose unverified rows are removed, after Rows and before Unverified: the upstream no longer has
	// them. A key without one changes nothing.
	Withdrawn []RowID
	// Removed are keys whose rows are removed, after Rows and Withdrawn, with the unverified row of the key: the upstream no longer
	// has them. A key without a row changes nothing.
	Removed []RowID
}

// RowID names a row: its type and its Row.Key.
type RowID struct {
	Type *Type
	Key  string
}

// ID returns the name of a row.
func (r Row) ID() RowID { return RowID{r.t, r.Key()} }

// Unverified is a row that contradicts its packet's bytes, or that cannot be checked. An Index keeps it apart from the others,
// and does not serve it unless it was opened to.
type Unverified struct {
	Row    Row
	Reason string    // what does not agree, for an operator: "base_amount is 5, but the packet's data says 6"
	Since  time.Time // UTC
}

// Written counts what a batch did: each of its Rows and each of its Unverified once. A row that only removes an unverified one
// is Updated; an unverified one that is already kept, with the same reason, is Unchanged.
type Written struct {
	Inserted  int `json:"inserted"`
	Updated   int `json:"updated"`
	Unchanged int `json:"unchanged"`
	Removed   int `json:"removed,omitempty"` // of Batch.Removed
}

// Add adds another batch's counts.
func (w *Written) Add(other Written) {
	w.Inserted += other.Inserted
	w.Updated += other.Updated
	w.Unchanged += other.Unchanged
	w.Removed += other.Removed
}

// TieBreak returns the sort_order under which a row is kept when another of its type has the one it came with.
// key is the row's own key as text (a packet's hash, a transfer's hash and index, …), so the result is unique,
// sorts directly after the other row, and is found again when the row is written a second time. Of a long sort_order the end
// is left out, so that the result has at most MaxSortOrder bytes where the key leaves room for that.
func TieBreak(sortOrder, key string) string {
	if most := max(0, MaxSortOrder-len(key)-1); len(sortOrder) > most {
		for most > 0 && !utf8.RuneStart(sortOrder[most]) {
			most--
		}
		sortOrder = sortOrder[:most]
	}
	return sortOrder + "~" + key
}
