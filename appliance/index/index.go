// Package index defines the read side: rows of cross-chain transfers, packets, tokens, chains, channels, clients and
// connections, the queries over them, and statistics. In this module, an index is a collection of such rows.
//
// The Go structs of the rows are in types.go, their encoding in row.go and encode.go. Stores keep the encoded rows.
package index

import (
	"context"
	"time"
	"unicode/utf8"
)

// Index stores rows and answers queries over them. Package store/replica implements it. All methods are safe for
// concurrent use, and readers never wait for writers.
type Index interface {
	// View calls read with the current state of the index. The snapshot and every Row from it are valid only until read
	// returns; Row.Clone outlives it. View returns read's error, CodeReplicaUnavailable if storage fails, or
	// CodeTimeout if ctx has ended.
	View(ctx context.Context, read func(Snapshot) error) error
	// Write upserts a batch atomically. When it returns nil, the batch is on disk and every later View sees it. A row
	// that the index already has in the same form changes no data; see Written.
	//
	// Rows are upserted in their order, by the key of their type: packets by packet_hash, transfers by packet_hash and
	// transfer_index, chains by universal_chain_id, tokens by universal_chain_id and denom, channels, clients and
	// connections by their (source) universal_chain_id and id. An upsert replaces the whole row, including fields that
	// are null in the new one.
	//
	// If another row of the type has the same sort_order, the later row is stored under sort_order~key (see TieBreak).
	// sort_order is therefore unique, and no page ends between equal rows.
	//
	// Errors: CodeInvalidField for a row that is not of one of RowTypes or lacks a key; CodeReplicaUnavailable.
	Write(ctx context.Context, b Batch) (Written, error)
}

// Snapshot is an Index at one moment. A store implements all of it. A reader that needs methods from several parts
// declares an interface with just these, as packages follower and dataset do.
//
// Its methods are safe for concurrent use. Methods that take a query return CodeInvalidField, with Field set, for an
// invalid query. Methods that take a context return CodeTimeout if it ends.
type Snapshot interface {
	Lists   // the rows of GraphQL
	Figures // the computed fields of GraphQL
	Scans   // following, verifying and exporting
	State   // commands, metrics, and readers that resume after an earlier batch
}

// Lists are the pages of rows that clients request, in the order of the query's Page. The default is newest first:
// sort_order descending, bytewise.
type Lists interface {
	Transfers(ctx context.Context, q TransferQuery) ([]Row, error) // of TransferType
	Packets(ctx context.Context, q PacketQuery) ([]Row, error)     // of PacketType
	// of TokenType, by rank, those without a rank last, then chain and denom
	Tokens(ctx context.Context, q TokenQuery) ([]Row, error)
	Chains(ctx context.Context, q ChainQuery) ([]Row, error)           // of ChainType, by universal_chain_id
	Channels(ctx context.Context, q ChannelQuery) ([]Row, error)       // of ChannelType
	Clients(ctx context.Context, q ClientQuery) ([]Row, error)         // of ClientType
	Connections(ctx context.Context, q ConnectionQuery) ([]Row, error) // of ConnectionType
	// of InstructionType, built from packets; those of a packet from the last to the first
	Instructions(ctx context.Context, q InstructionQuery) ([]Row, error)
	// of BondType, UnbondType, WithdrawalType or DustWithdrawalType, built from packets
	Stakes(ctx context.Context, q StakeQuery) ([]Row, error)

	// Related returns the row that a relation of row's type leads to: a transfer's source_chain, the packet that has
	// its traces, a trace's chain. For a chain or packet that the index lacks, Related returns a row with only its key;
	// for any other relation, the zero Row. The lookup is in memory, except that PacketType is read from disk.
	Related(row Row, r Relation) Row
}

// Figures are statistics computed over rows.
type Figures interface {
	// Stats returns total_transfers and total_packets.
	Stats(ctx context.Context) ([]Stat, error)
	// TransfersDaily and PacketsDaily count by the UTC day of sending, newest day first. Days without any are left out.
	TransfersDaily(ctx context.Context, q DayQuery) ([]DayCount, error)
	PacketsDaily(ctx context.Context, q DayQuery) ([]DayCount, error)
	// TransfersByChain and PacketsByChain count by day and pair of chains, newest day first, then by chains.
	TransfersByChain(ctx context.Context, q DayQuery) ([]RouteDayCount, error)
	PacketsByChain(ctx context.Context, q DayQuery) ([]RouteDayCount, error)
	// Latency returns percentiles of packet latencies by nearest rank, each within LatencyError of the exact value. The
	// query may omit the chains.
	Latency(ctx context.Context, q LatencyQuery) (Latency, error)
	// Health returns one check per network that has chains: mainnet, then testnet.
	Health(ctx context.Context) ([]HealthCheck, error)
}

// Scans read many rows. An error of yield ends the scan and is returned.
type Scans interface {
	// Each calls yield with each row of a type, in the order of export: by sort_order ascending, bytewise (chains and
	// tokens by key).
	Each(ctx context.Context, t *Type, yield func(Row) error) error
	// Unfinished calls yield with each packet that is neither acknowledged nor timed out, in an order that the index
	// chooses. It starts after behind, a packet that an earlier snapshot has yielded; the zero Row starts at the first.
	Unfinished(ctx context.Context, behind Row, yield func(Row) error) error
	// Unverified calls yield with each quarantined row, by type and key. If the index serves quarantined rows, the
	// other methods return them, too.
	Unverified(ctx context.Context, yield func(Unverified) error) error
	// Sample returns n different random rows of PacketType or TransferType, in any order. It returns all of them if
	// there are at most n, and in rare cases fewer than n.
	//
	// Errors: CodeInvalidField for other types.
	Sample(ctx context.Context, t *Type, n int) ([]Row, error)
}

// State describes the index itself.
type State interface {
	// Status returns the contents of the index and their freshness.
	Status(ctx context.Context) (Status, error)
	// Position returns the value that a Batch last set under that name, or "" and false.
	Position(ctx context.Context, name string) (string, bool, error)
}

// StatusOf returns the current Status of an index.
func StatusOf(ctx context.Context, idx Index) (status Status, err error) {
	err = idx.View(ctx, func(s Snapshot) error {
		status, err = s.Status(ctx)
		return err
	})
	return status, err
}

// Batch is one atomic Index.Write.
type Batch struct {
	Rows []Row // of RowTypes
	// Positions are set together with the rows, so that a reader of an upstream or a file knows after a crash how far
	// it got. An empty value removes a position.
	Positions map[string]string
	// Index is the Status.ID of the index that the batch continues. An index that was recreated since then refuses the
	// batch (appliance.CodeReplicaUnavailable), because it lacks the rows that the positions stand for. Empty means any
	// index.
	Index string
	// Unverified are packets and transfers to quarantine, one for each key. A later one replaces an earlier one. A row
	// with that key in the Rows of a later batch removes it, even if the row itself is unchanged. Unverified rows are
	// written after Rows: if a key is in both, the row is served and the unverified one is quarantined. A row that the
	// index already has for the key is still served; if the index serves quarantined rows, they hide it until they are
	// removed. Since is ignored: the index records when it first quarantined the key.
	//
	// Errors: CodeInvalidField for other types.
	Unverified []Unverified
	// Withdrawn are keys whose quarantined rows are removed, after Rows and before Unverified, because the upstream no
	// longer has them. Keys without a quarantined row are ignored.
	Withdrawn []RowID
	// Removed are keys whose rows are removed, together with the quarantined row of the key, after Rows and Withdrawn,
	// because the upstream no longer has them. Keys without a row are ignored.
	Removed []RowID
}

// ProofPosition returns the name of the position that has the proof of a packet, as the JSON that
// indexer.PacketProof describes.
func ProofPosition(packetHash string) string { return "proof " + packetHash }

// RowID names a row by its type and its Row.Key.
type RowID struct {
	Type *Type
	Key  string
}

// ID returns the type and key of a row.
func (r Row) ID() RowID { return RowID{r.t, r.Key()} }

// Unverified is a row that contradicts its packet's bytes, or that cannot be checked. An Index quarantines it, and
// serves it only if it was opened to do so.
type Unverified struct {
	Row    Row
	Reason string    // the mismatch, for an operator: "base_amount is 5, but the packet's data says 6"
	Since  time.Time // UTC
}

// Written counts the effect of a batch, once for each of its Rows and Unverified. A row that only removes a quarantined
// one counts as Updated. A row that is already quarantined for the same reason counts as Unchanged.
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

// TieBreak returns the sort_order under which a row is stored if another row of its type has the same sort_order. key
// is the row's own key as text (a packet's hash, a transfer's hash and index, …). The result is therefore unique, sorts
// directly after the other row, and is found again when the row is rewritten. A long sort_order is truncated so that
// the result has at most MaxSortOrder bytes, if the key leaves room for that.
func TieBreak(sortOrder, key string) string {
	if most := max(0, MaxSortOrder-len(key)-1); len(sortOrder) > most {
		for most > 0 && !utf8.RuneStart(sortOrder[most]) {
			most--
		}
		sortOrder = sortOrder[:most]
	}
	return sortOrder + "~" + key
}
