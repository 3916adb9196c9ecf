package index

import (
	"encoding/json"
	"time"
)

// The Go structs of the rows are the only description of the index. The json tag is a field's name in NDJSON and in
// GraphQL. The row tag is its number in an encoded row. A pointer may be null; every other field is required. A
// required struct is never null: it is empty if it is left out. The encoding of rows, NDJSON and the relations follow
// from the structs; see Type.
//
// The numbers of a struct are 0, 1, 2, … without a gap, in any order. They must not change, because rows are on disk. A
// new field takes the next number and is null in older rows. Any other change needs a new FormatVersion.
//
// Amounts, heights and counts are decimal text because they exceed 64 bits. Addresses come in three forms (UCS-05):
// canonical is 0x-hex of the raw bytes, display is the form that the chain shows, and zkgm is 0x-hex of the bytes in
// the protocol. A universal chain id (UCS-04) is family.chain_id.
//
// Fields marked "not in GraphQL" exist only in NDJSON.

// Transfer is a token order of a packet on a channel of version ucs03-zkgm-0.
type Transfer struct {
	SortOrder     string `json:"sort_order" row:"0"`
	PacketHash    string `json:"packet_hash" row:"1"`
	TransferIndex int32  `json:"transfer_index" row:"2"` // the order's position in its packet, from 0
	// the type of the last trace that has happened, or TIMEOUT
	Status                 *string    `json:"status" row:"3"`
	SourceUniversalChainID string     `json:"source_universal_chain_id" row:"4"`
	DestUniversalChainID   string     `json:"destination_universal_chain_id" row:"5"`
	SenderCanonical        *string    `json:"sender_canonical" row:"6"`
	ReceiverCanonical      *string    `json:"receiver_canonical" row:"7"`
	BaseToken              *string    `json:"base_token" row:"8"`
	BaseAmount             *string    `json:"base_amount" row:"9"`
	QuoteToken             *string    `json:"quote_token" row:"10"`
	QuoteAmount            *string    `json:"quote_amount" row:"11"`
	SendTimestamp          *time.Time `json:"transfer_send_timestamp" row:"12"`
	SendTransactionHash    *string    `json:"transfer_send_transaction_hash" row:"13"`
	RecvTimestamp          *time.Time `json:"transfer_recv_timestamp" row:"14"`
	RecvTransactionHash    *string    `json:"transfer_recv_transaction_hash" row:"15"`
	TimeoutTimestamp       *time.Time `json:"transfer_timeout_timestamp" row:"16"`
	TimeoutTransactionHash *string    `json:"transfer_timeout_transaction_hash" row:"17"`
	Success                *bool      `json:"success" row:"18"` // of the acknowledgement; null before it
	PacketShape            *string    `json:"packet_shape" row:"19"`
	WrapDirection          *string    `json:"wrap_direction" row:"20"`
	BaseTokenName          *string    `json:"base_token_name" row:"21"`
	BaseTokenSymbol        *string    `json:"base_token_symbol" row:"22"`
	BaseTokenDecimals      *int32     `json:"base_token_decimals" row:"23"`
	BaseTokenPath          *string    `json:"base_token_path" row:"24"`
	SenderDisplay          *string    `json:"sender_display" row:"25"`
	SenderZkgm             *string    `json:"sender_zkgm" row:"26"`
	ReceiverDisplay        *string    `json:"receiver_display" row:"27"`
	ReceiverZkgm           *string    `json:"receiver_zkgm" row:"28"`
	FeeType                *string    `json:"fee_type" row:"29"`
	FeeToken               *string    `json:"fee_token" row:"30"`
	FeeAmount              *string    `json:"fee_amount" row:"31"`
}

// Packet is a message from one chain to another.
type Packet struct {
	SortOrder  string `json:"sort_order" row:"0"`
	PacketHash string `json:"packet_hash" row:"1"` // see zkgm.PacketHash
	// the type of the last trace that has happened, or TIMEOUT
	Status                       *string    `json:"status" row:"2"`
	ChannelVersion               *string    `json:"channel_version" row:"3"`
	SourceUniversalChainID       string     `json:"source_universal_chain_id" row:"4"`
	InternalSourceChainID        *int32     `json:"internal_source_chain_id" row:"5"`
	SourceClientID               *int32     `json:"source_client_id" row:"6"`
	SourceConnectionID           *int32     `json:"source_connection_id" row:"7"`
	SourceChannelID              *int32     `json:"source_channel_id" row:"8"`
	SourcePortID                 *string    `json:"source_port_id" row:"9"`
	DestUniversalChainID         string     `json:"destination_universal_chain_id" row:"10"`
	InternalDestinationChainID   *int32     `json:"internal_destination_chain_id" row:"11"`
	DestinationChainID           *string    `json:"destination_chain_id" row:"12"`
	DestinationClientID          *int32     `json:"destination_client_id" row:"13"`
	DestinationConnectionID      *int32     `json:"destination_connection_id" row:"14"`
	DestinationChannelID         *int32     `json:"destination_channel_id" row:"15"`
	DestinationPortID            *string    `json:"destination_port_id" row:"16"`
	TimeoutHeight                *string    `json:"timeout_height" row:"17"`
	TimeoutTimestamp             *string    `json:"timeout_timestamp" row:"18"` // nanoseconds since 1970
	SendTimestamp                *time.Time `json:"packet_send_timestamp" row:"19"`
	SendBlockHash                *string    `json:"packet_send_block_hash" row:"20"`
	SendHeight                   *string    `json:"packet_send_height" row:"21"`
	SendTransactionHash          *string    `json:"packet_send_transaction_hash" row:"22"`
	RecvTimestamp                *time.Time `json:"packet_recv_timestamp" row:"23"`
	RecvBlockHash                *string    `json:"packet_recv_block_hash" row:"24"`
	RecvHeight                   *string    `json:"packet_recv_height" row:"25"`
	RecvTransactionHash          *string    `json:"packet_recv_transaction_hash" row:"26"`
	RecvMaker                    *string    `json:"packet_recv_maker" row:"27"`
	RecvMakerMsg                 *string    `json:"packet_recv_maker_msg" row:"28"`
	WriteAckTimestamp            *time.Time `json:"write_ack_timestamp" row:"29"`
	WriteAckBlockHash            *string    `json:"write_ack_block_hash" row:"30"`
	WriteAckHeight               *string    `json:"write_ack_height" row:"31"`
	WriteAckTransactionHash      *string    `json:"write_ack_transaction_hash" row:"32"`
	AckTimestamp                 *time.Time `json:"packet_ack_timestamp" row:"33"`
	AckBlockHash                 *string    `json:"packet_ack_block_hash" row:"34"`
	AckHeight                    *string    `json:"packet_ack_height" row:"35"`
	AckTransactionHash           *string    `json:"packet_ack_transaction_hash" row:"36"`
	AckMaker                     *string    `json:"packet_ack_maker" row:"37"`
	PacketTimeoutTimestamp       *time.Time `json:"packet_timeout_timestamp" row:"38"`
	PacketTimeoutBlockHash       *string    `json:"packet_timeout_block_hash" row:"39"`
	PacketTimeoutHeight          *string    `json:"packet_timeout_height" row:"40"`
	PacketTimeoutTransactionHash *string    `json:"packet_timeout_transaction_hash" row:"41"`
	PacketTimeoutMaker           *string    `json:"packet_timeout_maker" row:"42"`
	Success                      *bool      `json:"success" row:"43"`   // of the acknowledgement; null before it
	Structure                    *string    `json:"structure" row:"44"` // zkgm.Instruction.Shape
	Data                         *string    `json:"data" row:"45"`      // 0x-hex
	Acknowledgement              *string    `json:"acknowledgement" row:"46"`
	// if a row lacks it, it is computed from data
	Decoded json.RawMessage `json:"decoded" row:"47"`
	// if a row lacks it, it is computed from data
	DecodedFlattened json.RawMessage `json:"decoded_flattened" row:"48"`
	Traces           []Trace         `json:"traces" row:"49"`
}

// Trace is a step of a packet's journey. A step that has not happened yet has only its type and chain.
type Trace struct {
	Type             string     `json:"type" row:"0"`
	UniversalChainID string     `json:"universal_chain_id" row:"1"`
	TransactionHash  *string    `json:"transaction_hash" row:"2"`
	Height           *string    `json:"height" row:"3"`
	Timestamp        *time.Time `json:"timestamp" row:"4"`
	BlockHash        *string    `json:"block_hash" row:"5"`
	EventIndex       *string    `json:"event_index" row:"6"`
}

// The types of traces, in order. Traces of light client updates come between them, one per light client of a state-lens
// path: their types are TraceSendUpdate or TraceAckUpdate followed by 0, 1, ….
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
	UniversalChainID string                `json:"universal_chain_id" row:"0"`
	Denom            string                `json:"denom" row:"1"` // 0x-hex
	NativeDenom      *string               `json:"native_denom" row:"2"`
	Rank             *int32                `json:"rank" row:"3"`
	Whitelist        *bool                 `json:"whitelist" row:"4"` // not in GraphQL; null means false
	Representations  []TokenRepresentation `json:"representations" row:"5"`
	Wrapping         []TokenWrapping       `json:"wrapping" row:"6"`
	Bucket           *TokenBucket          `json:"bucket" row:"7"`
}

// TokenRepresentation is a name under which a token is known.
type TokenRepresentation struct {
	UniversalChainID string        `json:"universal_chain_id" row:"0"` // not in GraphQL, which has chain
	Denom            *string       `json:"denom" row:"1"`
	Symbol           *string       `json:"symbol" row:"2"`
	Name             *string       `json:"name" row:"3"`
	Decimals         *int32        `json:"decimals" row:"4"`
	LogoURI          *string       `json:"logo_uri" row:"5"`
	Sources          []TokenSource `json:"sources" row:"6"`
}

// TokenSource is a listing that a representation was taken from.
type TokenSource struct {
	UniversalChainID string      `json:"universal_chain_id" row:"0"` // not in GraphQL, which has chain
	Denom            *string     `json:"denom" row:"1"`
	Symbol           *string     `json:"symbol" row:"2"`
	Name             *string     `json:"name" row:"3"`
	Decimals         *int32      `json:"decimals" row:"4"`
	UpdateTimestamp  *time.Time  `json:"update_timestamp" row:"5"`
	Source           TokenOrigin `json:"source" row:"6"`
}

// TokenOrigin is a token list.
type TokenOrigin struct {
	Name      *string `json:"name" row:"0"`
	SourceURI *string `json:"source_uri" row:"1"`
	LogoURI   *string `json:"logo_uri" row:"2"`
}

// TokenWrapping is a step by which a token is bridged.
type TokenWrapping struct {
	Index *int32 `json:"index" row:"0"`
	// not in GraphQL, which has unwrapped_chain
	UnwrappedUniversalChainID string  `json:"unwrapped_universal_chain_id" row:"1"`
	UnwrappedDenom            *string `json:"unwrapped_denom" row:"2"`
	// not in GraphQL, which has wrapped_chain
	WrappedUniversalChainID string  `json:"wrapped_universal_chain_id" row:"3"`
	WrappedDenom            *string `json:"wrapped_denom" row:"4"`
	DestinationChannelID    *int32  `json:"destination_channel_id" row:"5"`
	Wrapper                 *string `json:"wrapper" row:"6"`
}

// TokenBucket limits how much of a token may move.
type TokenBucket struct {
	UniversalChainID string  `json:"universal_chain_id" row:"0"` // not in GraphQL, which has chain
	Denom            *string `json:"denom" row:"1"`
	Capacity         *string `json:"capacity" row:"2"`
	RefillRate       *string `json:"refill_rate" row:"3"`
}

// Chain is a connected chain.
type Chain struct {
	UniversalChainID     string          `json:"universal_chain_id" row:"0"`
	ChainID              *string         `json:"chain_id" row:"1"`
	DisplayName          *string         `json:"display_name" row:"2"`
	Testnet              *bool           `json:"testnet" row:"3"`
	RPCType              *string         `json:"rpc_type" row:"4"`
	AddrPrefix           *string         `json:"addr_prefix" row:"5"`
	LogoURI              *string         `json:"logo_uri" row:"6"`
	MinterAddressDisplay *string         `json:"minter_address_display" row:"7"`
	Status               ChainStatus     `json:"status" row:"8"`
	Family               ChainFamily     `json:"family" row:"9"`
	Editions             []ChainEdition  `json:"editions" row:"10"`
	Explorers            []ChainExplorer `json:"explorers" row:"11"`
	Features             []ChainFeatures `json:"features" row:"12"`
	RPCs                 []ChainRPC      `json:"rpcs" row:"13"`
}

// ChainStatus is the progress of indexing a chain.
type ChainStatus struct {
	Height        *string    `json:"height" row:"0"`
	Status        *string    `json:"status" row:"1"`
	Timestamp     *time.Time `json:"timestamp" row:"2"`
	TipAgeSeconds *int32     `json:"tip_age_seconds" row:"3"`
}

// ChainFamily is the kind of a chain.
type ChainFamily struct {
	Name         *string `json:"name" row:"0"`
	IBCInterface *string `json:"ibc_interface" row:"1"`
}

// ChainEdition is a product edition that shows the chain.
type ChainEdition struct {
	Name        *string `json:"name" row:"0"`
	Environment *string `json:"environment" row:"1"`
}

// ChainExplorer is a block explorer.
type ChainExplorer struct {
	Name        *string `json:"name" row:"0"`
	DisplayName *string `json:"display_name" row:"1"`
	Description *string `json:"description" row:"2"`
	BlockURL    *string `json:"block_url" row:"3"`
	TxURL       *string `json:"tx_url" row:"4"`
	AddressURL  *string `json:"address_url" row:"5"`
	HomeURL     *string `json:"home_url" row:"6"`
	LogoURI     *string `json:"logo_uri" row:"7"`
}

// ChainFeatures lists which views of a chain an environment shows.
type ChainFeatures struct {
	Environment        *string `json:"environment" row:"0"`
	PacketList         *bool   `json:"packet_list" row:"1"`
	TransferList       *bool   `json:"transfer_list" row:"2"`
	ConnectionList     *bool   `json:"connection_list" row:"3"`
	ChannelList        *bool   `json:"channel_list" row:"4"`
	IndexStatus        *bool   `json:"index_status" row:"5"`
	TransferSubmission *bool   `json:"transfer_submission" row:"6"`
}

// ChainRPC is a public node.
type ChainRPC struct {
	URL         *string `json:"url" row:"0"`
	Description *string `json:"description" row:"1"`
	Contact     *string `json:"contact" row:"2"`
	Type        *string `json:"type" row:"3"`
}

// Channel is a channel as its source sees it.
type Channel struct {
	SortOrder               string       `json:"sort_order" row:"0"`
	SourceUniversalChainID  string       `json:"source_universal_chain_id" row:"1"`
	SourceChannelID         int32        `json:"source_channel_id" row:"2"`
	SourceClientID          *int32       `json:"source_client_id" row:"3"`
	SourceConnectionID      *int32       `json:"source_connection_id" row:"4"`
	SourcePortID            *string      `json:"source_port_id" row:"5"`
	DestUniversalChainID    string       `json:"destination_universal_chain_id" row:"6"`
	DestinationChannelID    *int32       `json:"destination_channel_id" row:"7"`
	DestinationClientID     *int32       `json:"destination_client_id" row:"8"`
	DestinationConnectionID *int32       `json:"destination_connection_id" row:"9"`
	DestinationPortID       *string      `json:"destination_port_id" row:"10"`
	Version                 *string      `json:"version" row:"11"`
	SLA                     *string      `json:"sla" row:"12"`         // an interval, see ParseInterval
	Recommended             *bool        `json:"recommended" row:"13"` // not in GraphQL; null means false
	Tags                    []string     `json:"tags" row:"14"`
	Fees                    []ChannelFee `json:"fees" row:"15"`
}

// ChannelFee is the price of an action on a channel.
type ChannelFee struct {
	Action *string `json:"action" row:"0"`
	Fee    *string `json:"fee" row:"1"`
}

// Client is a light client.
type Client struct {
	SortOrder                    string        `json:"sort_order" row:"0"`
	UniversalChainID             string        `json:"universal_chain_id" row:"1"`
	ClientID                     int32         `json:"client_id" row:"2"`
	CounterpartyUniversalChainID string        `json:"counterparty_universal_chain_id" row:"3"`
	Status                       *ClientStatus `json:"status" row:"4"`
}

// ClientStatus is a client's last update.
type ClientStatus struct {
	BlockHash          *string    `json:"block_hash" row:"0"`
	Height             *string    `json:"height" row:"1"`
	TransactionHash    *string    `json:"transaction_hash" row:"2"`
	CounterpartyHeight *string    `json:"counterparty_height" row:"3"`
	Timestamp          *time.Time `json:"timestamp" row:"4"`
}

// Connection is a connection as its source sees it.
type Connection struct {
	SortOrder               string `json:"sort_order" row:"0"`
	SourceUniversalChainID  string `json:"source_universal_chain_id" row:"1"`
	SourceConnectionID      int32  `json:"source_connection_id" row:"2"`
	SourceClientID          *int32 `json:"source_client_id" row:"3"`
	DestUniversalChainID    string `json:"destination_universal_chain_id" row:"4"`
	DestinationConnectionID *int32 `json:"destination_connection_id" row:"5"`
	DestinationClientID     *int32 `json:"destination_client_id" row:"6"`
}
