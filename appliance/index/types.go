package index

import (
	"encoding/json"
	"time"
)

// The types of the index. They are the one description of it: the json tag is a field's name in NDJSON and in
// GraphQL, a pointer may be null, a value member is required (a struct: never null, an empty one where it is
// left out). The encoding of rows, NDJSON and the relations follow from them; see Type.
//
// Amounts, heights and counts are decimal text, for they exceed 64 bits. Addresses come in three forms (UCS-05):
// canonical is 0x-hex of the raw bytes, display as the chain shows it, zkgm 0x-hex of what the protocol carries. A
// universal chain id (UCS-04) is family.chain_id.
//
// Fields marked "not in GraphQL" exist only in NDJSON.

// Transfer is a token order of a packet on a channel of version ucs03-zkgm-0.
type Transfer struct {
	SortOrder              string     `json:"sort_order"`
	PacketHash             string     `json:"packet_hash"`
	TransferIndex          int32      `json:"transfer_index"` // the order's place in its packet, from 0
	Status                 *string    `json:"status"`         // the type of the last trace that has happened, or TIMEOUT
	SourceUniversalChainID string     `json:"source_universal_chain_id"`
	DestUniversalChainID   string     `json:"destination_universal_chain_id"`
	SenderCanonical        *string    `json:"sender_canonical"`
	ReceiverCanonical      *string    `json:"receiver_canonical"`
	BaseToken              *string    `json:"base_token"`
	BaseAmount             *string    `json:"base_amount"`
	QuoteToken             *string    `json:"quote_token"`
	QuoteAmount            *string    `json:"quote_amount"`
	SendTimestamp          *time.Time `json:"transfer_send_timestamp"`
	SendTransactionHash    *string    `json:"transfer_send_transaction_hash"`
	RecvTimestamp          *time.Time `json:"transfer_recv_timestamp"`
	RecvTransactionHash    *string    `json:"transfer_recv_transaction_hash"`
	TimeoutTimestamp       *time.Time `json:"transfer_timeout_timestamp"`
	TimeoutTransactionHash *string    `json:"transfer_timeout_transaction_hash"`
	Success                *bool      `json:"success"` // of the acknowledgement; null before it
	PacketShape            *string    `json:"packet_shape"`
	WrapDirection          *string    `json:"wrap_direction"`
	BaseTokenName          *string    `json:"base_token_name"`
	BaseTokenSymbol        *string    `json:"base_token_symbol"`
	BaseTokenDecimals      *int32     `json:"base_token_decimals"`
	BaseTokenPath          *string    `json:"base_token_path"`
	SenderDisplay          *string    `json:"sender_display"`
	SenderZkgm             *string    `json:"sender_zkgm"`
	ReceiverDisplay        *string    `json:"receiver_display"`
	ReceiverZkgm           *string    `json:"receiver_zkgm"`
	FeeType                *string    `json:"fee_type"`
	FeeToken               *string    `json:"fee_token"`
	FeeAmount              *string    `json:"fee_amount"`
}

// Packet is a message from one chain to another.
type Packet struct {
	SortOrder                    string          `json:"sort_order"`
	PacketHash                   string          `json:"packet_hash"` // see zkgm.PacketHash
	Status                       *string         `json:"status"`      // the type of the last trace that has happened, or TIMEOUT
	ChannelVersion               *string         `json:"channel_version"`
	SourceUniversalChainID       string          `json:"source_universal_chain_id"`
	InternalSourceChainID        *int32          `json:"internal_source_chain_id"`
	SourceClientID               *int32          `json:"source_client_id"`
	SourceConnectionID           *int32          `json:"source_connection_id"`
	SourceChannelID              *int32          `json:"source_channel_id"`
	SourcePortID                 *string         `json:"source_port_id"`
	DestUniversalChainID         string          `json:"destination_universal_chain_id"`
	InternalDestinationChainID   *int32          `json:"internal_destination_chain_id"`
	DestinationChainID           *string         `json:"destination_chain_id"`
	DestinationClientID          *int32          `json:"destination_client_id"`
	DestinationConnectionID      *int32          `json:"destination_connection_id"`
	DestinationChannelID         *int32          `json:"destination_channel_id"`
	DestinationPortID            *string         `json:"destination_port_id"`
	TimeoutHeight                *string         `json:"timeout_height"`
	TimeoutTimestamp             *string         `json:"timeout_timestamp"` // nanoseconds since 1970
	SendTimestamp                *time.Time      `json:"packet_send_timestamp"`
	SendBlockHash                *string         `json:"packet_send_block_hash"`
	SendHeight                   *string         `json:"packet_send_height"`
	SendTransactionHash          *string         `json:"packet_send_transaction_hash"`
	RecvTimestamp                *time.Time      `json:"packet_recv_timestamp"`
	RecvBlockHash                *string         `json:"packet_recv_block_hash"`
	RecvHeight                   *string         `json:"packet_recv_height"`
	RecvTransactionHash          *string         `json:"packet_recv_transaction_hash"`
	RecvMaker                    *string         `json:"packet_recv_maker"`
	RecvMakerMsg                 *string         `json:"packet_recv_maker_msg"`
	WriteAckTimestamp            *time.Time      `json:"write_ack_timestamp"`
	WriteAckBlockHash            *string         `json:"write_ack_block_hash"`
	WriteAckHeight               *string         `json:"write_ack_height"`
	WriteAckTransactionHash      *string         `json:"write_ack_transaction_hash"`
	AckTimestamp                 *time.Time      `json:"packet_ack_timestamp"`
	AckBlockHash                 *string         `json:"packet_ack_block_hash"`
	AckHeight                    *string         `json:"packet_ack_height"`
	AckTransactionHash           *string         `json:"packet_ack_transaction_hash"`
	AckMaker                     *string         `json:"packet_ack_maker"`
	PacketTimeoutTimestamp       *time.Time      `json:"packet_timeout_timestamp"`
	PacketTimeoutBlockHash       *string         `json:"packet_timeout_block_hash"`
	PacketTimeoutHeight          *string         `json:"packet_timeout_height"`
	PacketTimeoutTransactionHash *string         `json:"packet_timeout_transaction_hash"`
	PacketTimeoutMaker           *string         `json:"packet_timeout_maker"`
	Success                      *bool           `json:"success"`   // of the acknowledgement; null before it
	Structure                    *string         `json:"structure"` // zkgm.Instruction.Shape
	Data                         *string         `json:"data"`      // 0x-hex
	Acknowledgement              *string         `json:"acknowledgement"`
	Decoded                      json.RawMessage `json:"decoded"`           // left out of a row it is made from data
	DecodedFlattened             json.RawMessage `json:"decoded_flattened"` // left out of a row it is made from data
	Traces                       []Trace         `json:"traces"`
}

// Trace is a step of a packet's way. A step that has not happened yet has only its type and chain.
type Trace struct {
	Type             string     `json:"type"`
	UniversalChainID string     `json:"universal_chain_id"`
	TransactionHash  *string    `json:"transaction_hash"`
	Height           *string    `json:"height"`
	Timestamp        *time.Time `json:"timestamp"`
	BlockHash        *string    `json:"block_hash"`
	EventIndex       *string    `json:"event_index"`
}

// The types of traces, in order. Between them come the prefixes TraceSendUpdate and TraceAckUpdate, followed by 0, 1, …:
// one per light client of a state-lens path.
const (
	TracePacketSend = "SEND_PACKET"
	TraceSendUpdate = "PACKET_SEND_LC_UPDATE_L"
	TracePacketRecv = "PACKET_RECV"
	TraceWriteAck   = "WRITE_ACK"
	TraceAckUpdate  = "WRITE_ACK_LC_UPDATE_L"
	TracePacketAck  = "PACKET_ACK"

	StatusTimeout = "TIMEOUT"
)

// Token is an entry of the curated registry.
type Token struct {
	UniversalChainID string                `json:"universal_chain_id"`
	Denom            string                `json:"denom"` // 0x-hex
	NativeDenom      *string               `json:"native_denom"`
	Rank             *int32                `json:"rank"`
	Whitelist        *bool                 `json:"whitelist"` // not in GraphQL; null is false
	Representations  []TokenRepresentation `json:"representations"`
	Wrapping         []TokenWrapping       `json:"wrapping"`
	Bucket           *TokenBucket          `json:"bucket"`
}

// TokenRepresentation is a name that a token goes by.
type TokenRepresentation struct {
	UniversalChainID string        `json:"universal_chain_id"` // not in GraphQL, where it is chain
	Denom            *string       `json:"denom"`
	Symbol           *string       `json:"symbol"`
	Name             *string       `json:"name"`
	Decimals         *int32        `json:"decimals"`
	LogoURI          *string       `json:"logo_uri"`
	Sources          []TokenSource `json:"sources"`
}

// TokenSource is a listing that a representation was taken from.
type TokenSource struct {
	UniversalChainID string      `json:"universal_chain_id"` // not in GraphQL, where it is chain
	Denom            *string     `json:"denom"`
	Symbol           *string     `json:"symbol"`
	Name             *string     `json:"name"`
	Decimals         *int32      `json:"decimals"`
	UpdateTimestamp  *time.Time  `json:"update_timestamp"`
	Source           TokenOrigin `json:"source"`
}

// TokenOrigin is a token list.
type TokenOrigin struct {
	Name      *string `json:"name"`
	SourceURI *string `json:"source_uri"`
	LogoURI   *string `json:"logo_uri"`
}

// TokenWrapping is a step by which a token is bridged.
type TokenWrapping struct {
	Index                     *int32  `json:"index"`
	UnwrappedUniversalChainID string  `json:"unwrapped_universal_chain_id"` // not in GraphQL, where it is unwrapped_chain
	UnwrappedDenom            *string `json:"unwrapped_denom"`
	WrappedUniversalChainID   string  `json:"wrapped_universal_chain_id"` // not in GraphQL, where it is wrapped_chain
	WrappedDenom              *string `json:"wrapped_denom"`
	DestinationChannelID      *int32  `json:"destination_channel_id"`
	Wrapper                   *string `json:"wrapper"`
}

// TokenBucket limits how much of a token may move.
type TokenBucket struct {
	UniversalChainID string  `json:"universal_chain_id"` // not in GraphQL, where it is chain
	Denom            *string `json:"denom"`
	Capacity         *string `json:"capacity"`
	RefillRate       *string `json:"refill_rate"`
}

// Chain is a connected chain.
type Chain struct {
	UniversalChainID     string          `json:"universal_chain_id"`
	ChainID              *string         `json:"chain_id"`
	DisplayName          *string         `json:"display_name"`
	Testnet              *bool           `json:"testnet"`
	RPCType              *string         `json:"rpc_type"`
	AddrPrefix           *string         `json:"addr_prefix"`
	LogoURI              *string         `json:"logo_uri"`
	MinterAddressDisplay *string         `json:"minter_address_display"`
	Status               ChainStatus     `json:"status"`
	Family               ChainFamily     `json:"family"`
	Editions             []ChainEdition  `json:"editions"`
	Explorers            []ChainExplorer `json:"explorers"`
	Features             []ChainFeatures `json:"features"`
	RPCs                 []ChainRPC      `json:"rpcs"`
}

// ChainStatus is how far a chain is indexed.
type ChainStatus struct {
	Height        *string    `json:"height"`
	Status        *string    `json:"status"`
	Timestamp     *time.Time `json:"timestamp"`
	TipAgeSeconds *int32     `json:"tip_age_seconds"`
}

// ChainFamily is a chain's kind.
type ChainFamily struct {
	Name         *string `json:"name"`
	IBCInterface *string `json:"ibc_interface"`
}

// ChainEdition is a product edition that shows the chain.
type ChainEdition struct {
	Name        *string `json:"name"`
	Environment *string `json:"environment"`
}

// ChainExplorer is a block explorer.
type ChainExplorer struct {
	Name        *string `json:"name"`
	DisplayName *string `json:"display_name"`
	Description *string `json:"description"`
	BlockURL    *string `json:"block_url"`
	TxURL       *string `json:"tx_url"`
	AddressURL  *string `json:"address_url"`
	HomeURL     *string `json:"home_url"`
	LogoURI     *string `json:"logo_uri"`
}

// ChainFeatures tells what is shown of a chain in an environment.
type ChainFeatures struct {
	Environment        *string `json:"environment"`
	PacketList         *bool   `json:"packet_list"`
	TransferList       *bool   `json:"transfer_list"`
	ConnectionList     *bool   `json:"connection_list"`
	ChannelList        *bool   `json:"channel_list"`
	IndexStatus        *bool   `json:"index_status"`
	TransferSubmission *bool   `json:"transfer_submission"`
}

// ChainRPC is a public node.
type ChainRPC struct {
	URL         *string `json:"url"`
	Description *string `json:"description"`
	Contact     *string `json:"contact"`
	Type        *string `json:"type"`
}

// Channel is a channel, seen from its source.
type Channel struct {
	SortOrder               string       `json:"sort_order"`
	SourceUniversalChainID  string       `json:"source_universal_chain_id"`
	SourceChannelID         int32        `json:"source_channel_id"`
	SourceClientID          *int32       `json:"source_client_id"`
	SourceConnectionID      *int32       `json:"source_connection_id"`
	SourcePortID            *string      `json:"source_port_id"`
	DestUniversalChainID    string       `json:"destination_universal_chain_id"`
	DestinationChannelID    *int32       `json:"destination_channel_id"`
	DestinationClientID     *int32       `json:"destination_client_id"`
	DestinationConnectionID *int32       `json:"destination_connection_id"`
	DestinationPortID       *string      `json:"destination_port_id"`
	Version                 *string      `json:"version"`
	SLA                     *string      `json:"sla"`         // an interval, see ParseInterval
	Recommended             *bool        `json:"recommended"` // not in GraphQL; null is false
	Tags                    []string     `json:"tags"`
	Fees                    []ChannelFee `json:"fees"`
}

// ChannelFee is what an action on a channel costs.
type ChannelFee struct {
	Action *string `json:"action"`
	Fee    *string `json:"fee"`
}

// Client is a light client.
type Client struct {
	SortOrder                    string        `json:"sort_order"`
	UniversalChainID             string        `json:"universal_chain_id"`
	ClientID                     int32         `json:"client_id"`
	CounterpartyUniversalChainID string        `json:"counterparty_universal_chain_id"`
	Status                       *ClientStatus `json:"status"`
}

// ClientStatus is a client's last update.
type ClientStatus struct {
	BlockHash          *string    `json:"block_hash"`
	Height             *string    `json:"height"`
	TransactionHash    *string    `json:"transaction_hash"`
	CounterpartyHeight *string    `json:"counterparty_height"`
	Timestamp          *time.Time `json:"timestamp"`
}

// Connection is a connection, seen from its source.
type Connection struct {
	SortOrder               string `json:"sort_order"`
	SourceUniversalChainID  string `json:"source_universal_chain_id"`
	SourceConnectionID      int32  `json:"source_connection_id"`
	SourceClientID          *int32 `json:"source_client_id"`
	DestUniversalChainID    string `json:"destination_universal_chain_id"`
	DestinationConnectionID *int32 `json:"destination_connection_id"`
	DestinationClientID     *int32 `json:"destination_client_id"`
}
