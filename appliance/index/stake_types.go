package index

import (
	"encoding/json"
	"time"
)

// The Go structs of stakes. Their rows are built from packets on request and are never on disk; see StakeOf. Source is
// the staker's chain, remote is the chain of the staking hub, and destination is the chain that the delivery goes to.

// Bond is a packet that stakes tokens, with the delivery of the staked tokens.
type Bond struct {
	SortOrder                string     `json:"sort_order" row:"0"`
	PacketHash               string     `json:"packet_hash" row:"1"`
	PacketShape              *string    `json:"packet_shape" row:"2"`
	SourceUniversalChainID   string     `json:"source_universal_chain_id" row:"3"`
	RemoteUniversalChainID   string     `json:"remote_universal_chain_id" row:"4"`
	DestUniversalChainID     string     `json:"destination_universal_chain_id" row:"5"`
	SenderCanonical          *string    `json:"sender_canonical" row:"6"`
	SenderDisplay            *string    `json:"sender_display" row:"7"`
	SenderZkgm               *string    `json:"sender_zkgm" row:"8"`
	StakerCanonical          *string    `json:"staker_canonical" row:"9"`
	StakerDisplay            *string    `json:"staker_display" row:"10"`
	StakerZkgm               *string    `json:"staker_zkgm" row:"11"`
	ReceiverCanonical        *string    `json:"receiver_canonical" row:"12"`
	ReceiverDisplay          *string    `json:"receiver_display" row:"13"`
	ReceiverZkgm             *string    `json:"receiver_zkgm" row:"14"`
	BaseToken                *string    `json:"base_token" row:"15"`
	BaseAmount               *string    `json:"base_amount" row:"16"`
	QuoteToken               *string    `json:"quote_token" row:"17"`
	QuoteAmount              *string    `json:"quote_amount" row:"18"`
	RemoteBaseToken          *string    `json:"remote_base_token" row:"19"`
	RemoteBaseAmount         *string    `json:"remote_base_amount" row:"20"`
	RemoteQuoteToken         *string    `json:"remote_quote_token" row:"21"`
	RemoteQuoteAmount        *string    `json:"remote_quote_amount" row:"22"`
	SendTimestamp            *time.Time `json:"bond_send_timestamp" row:"23"`
	SendTransactionHash      *string    `json:"bond_send_transaction_hash" row:"24"`
	RecvTimestamp            *time.Time `json:"bond_recv_timestamp" row:"25"`
	RecvTransactionHash      *string    `json:"bond_recv_transaction_hash" row:"26"`
	TimeoutTimestamp         *time.Time `json:"bond_timeout_timestamp" row:"27"`
	TimeoutTransactionHash   *string    `json:"bond_timeout_transaction_hash" row:"28"`
	Success                  *bool      `json:"bond_success" row:"29"`
	DeliveryPacketHash       *string    `json:"delivery_packet_hash" row:"30"`
	DeliverySendTimestamp    *time.Time `json:"delivery_send_timestamp" row:"31"`
	DeliverySendTransaction  *string    `json:"delivery_send_transaction_hash" row:"32"`
	DeliveryRecvTimestamp    *time.Time `json:"delivery_recv_timestamp" row:"33"`
	DeliveryRecvTransaction  *string    `json:"delivery_recv_transaction_hash" row:"34"`
	DeliveryTimeoutTimestamp *time.Time `json:"delivery_timeout_timestamp" row:"35"`
	DeliveryTimeout          *string    `json:"delivery_timeout_transaction_hash" row:"36"`
	DeliverySuccess          *bool      `json:"delivery_success" row:"37"`
}

// Unbond is a packet that returns staked tokens in exchange for a claim. Packets contain neither the claim nor its
// redemption.
type Unbond struct {
	SortOrder              string     `json:"sort_order" row:"0"`
	PacketHash             string     `json:"packet_hash" row:"1"`
	PacketShape            *string    `json:"packet_shape" row:"2"`
	SourceUniversalChainID string     `json:"source_universal_chain_id" row:"3"`
	DestUniversalChainID   string     `json:"destination_universal_chain_id" row:"4"`
	SenderCanonical        *string    `json:"sender_canonical" row:"5"`
	SenderDisplay          *string    `json:"sender_display" row:"6"`
	SenderZkgm             *string    `json:"sender_zkgm" row:"7"`
	StakerCanonical        *string    `json:"staker_canonical" row:"8"`
	StakerDisplay          *string    `json:"staker_display" row:"9"`
	StakerZkgm             *string    `json:"staker_zkgm" row:"10"`
	BaseToken              *string    `json:"base_token" row:"11"`
	BaseAmount             *string    `json:"base_amount" row:"12"`
	Batch                  *string    `json:"batch" row:"13"`
	SendTimestamp          *time.Time `json:"unbond_send_timestamp" row:"14"`
	SendTransactionHash    *string    `json:"unbond_send_transaction_hash" row:"15"`
	RecvTimestamp          *time.Time `json:"unbond_recv_timestamp" row:"16"`
	RecvTransactionHash    *string    `json:"unbond_recv_transaction_hash" row:"17"`
	TimeoutTimestamp       *time.Time `json:"unbond_timeout_timestamp" row:"18"`
	TimeoutTransactionHash *string    `json:"unbond_timeout_transaction_hash" row:"19"`
	Success                *bool      `json:"success" row:"20"`
	WithdrawPacketHash     *string    `json:"withdraw_packet_hash" row:"21"`
}

// Withdrawal is a packet that redeems claims, with the delivery of the tokens.
type Withdrawal struct {
	SortOrder              string  `json:"sort_order" row:"0"`
	PacketHash             string  `json:"packet_hash" row:"1"`
	PacketShape            *string `json:"packet_shape" row:"2"`
	SourceUniversalChainID string  `json:"source_universal_chain_id" row:"3"`
	RemoteUniversalChainID string  `json:"remote_universal_chain_id" row:"4"`
	DestUniversalChainID   string  `json:"destination_universal_chain_id" row:"5"`
	StakerCanonical        *string `json:"staker_canonical" row:"6"`
	StakerDisplay          *string `json:"staker_display" row:"7"`
	StakerZkgm             *string `json:"staker_zkgm" row:"8"`
	ReceiverCanonical      *string `json:"receiver_canonical" row:"9"`
	ReceiverDisplay        *string `json:"receiver_display" row:"10"`
	ReceiverZkgm           *string `json:"receiver_zkgm" row:"11"`
	QuoteToken             *string `json:"quote_token" row:"12"`
	QuoteAmount            *string `json:"quote_amount" row:"13"`
	RemoteBaseToken        *string `json:"remote_base_token" row:"14"`
	RemoteBaseAmount       *string `json:"remote_base_amount" row:"15"`
	// an object of batch ids; the values are null because no packet contains them
	Batches                  json.RawMessage `json:"batches" row:"16"`
	SendTimestamp            *time.Time      `json:"withdraw_send_timestamp" row:"17"`
	SendTransactionHash      *string         `json:"withdraw_send_transaction_hash" row:"18"`
	RecvTimestamp            *time.Time      `json:"withdraw_recv_timestamp" row:"19"`
	RecvTransactionHash      *string         `json:"withdraw_recv_transaction_hash" row:"20"`
	TimeoutTimestamp         *time.Time      `json:"withdraw_timeout_timestamp" row:"21"`
	TimeoutTransactionHash   *string         `json:"withdraw_timeout_transaction_hash" row:"22"`
	Success                  *bool           `json:"withdraw_success" row:"23"`
	DeliveryPacketHash       *string         `json:"delivery_packet_hash" row:"24"`
	DeliverySendTimestamp    *time.Time      `json:"delivery_send_timestamp" row:"25"`
	DeliverySendTransaction  *string         `json:"delivery_send_transaction_hash" row:"26"`
	DeliveryRecvTimestamp    *time.Time      `json:"delivery_recv_timestamp" row:"27"`
	DeliveryRecvTransaction  *string         `json:"delivery_recv_transaction_hash" row:"28"`
	DeliveryTimeoutTimestamp *time.Time      `json:"delivery_timeout_timestamp" row:"29"`
	DeliveryTimeout          *string         `json:"delivery_timeout_transaction_hash" row:"30"`
	DeliverySuccess          *bool           `json:"delivery_success" row:"31"`
}

// DustWithdrawal is a packet that withdraws the remainder at the proxy, with its delivery.
type DustWithdrawal struct {
	SortOrder                string     `json:"sort_order" row:"0"`
	PacketHash               string     `json:"packet_hash" row:"1"`
	PacketShape              *string    `json:"packet_shape" row:"2"`
	SourceUniversalChainID   string     `json:"source_universal_chain_id" row:"3"`
	RemoteUniversalChainID   string     `json:"remote_universal_chain_id" row:"4"`
	DestUniversalChainID     string     `json:"destination_universal_chain_id" row:"5"`
	StakerCanonical          *string    `json:"staker_canonical" row:"6"`
	StakerDisplay            *string    `json:"staker_display" row:"7"`
	StakerZkgm               *string    `json:"staker_zkgm" row:"8"`
	ReceiverCanonical        *string    `json:"receiver_canonical" row:"9"`
	ReceiverDisplay          *string    `json:"receiver_display" row:"10"`
	ReceiverZkgm             *string    `json:"receiver_zkgm" row:"11"`
	QuoteToken               *string    `json:"quote_token" row:"12"`
	QuoteAmount              *string    `json:"quote_amount" row:"13"`
	RemoteBaseToken          *string    `json:"remote_base_token" row:"14"`
	RemoteBaseAmount         *string    `json:"remote_base_amount" row:"15"`
	SendTimestamp            *time.Time `json:"dust_withdraw_send_timestamp" row:"16"`
	SendTransactionHash      *string    `json:"dust_withdraw_send_transaction_hash" row:"17"`
	RecvTimestamp            *time.Time `json:"dust_withdraw_recv_timestamp" row:"18"`
	RecvTransactionHash      *string    `json:"dust_withdraw_recv_transaction_hash" row:"19"`
	TimeoutTimestamp         *time.Time `json:"dust_withdraw_timeout_timestamp" row:"20"`
	TimeoutTransactionHash   *string    `json:"dust_withdraw_timeout_transaction_hash" row:"21"`
	Success                  *bool      `json:"dust_withdraw_success" row:"22"`
	DeliveryPacketHash       *string    `json:"delivery_packet_hash" row:"23"`
	DeliverySendTimestamp    *time.Time `json:"delivery_send_timestamp" row:"24"`
	DeliverySendTransaction  *string    `json:"delivery_send_transaction_hash" row:"25"`
	DeliveryRecvTimestamp    *time.Time `json:"delivery_recv_timestamp" row:"26"`
	DeliveryRecvTransaction  *string    `json:"delivery_recv_transaction_hash" row:"27"`
	DeliveryTimeoutTimestamp *time.Time `json:"delivery_timeout_timestamp" row:"28"`
	DeliveryTimeout          *string    `json:"delivery_timeout_transaction_hash" row:"29"`
	DeliverySuccess          *bool      `json:"delivery_success" row:"30"`
}

// The types of stakes. One relation leads to the stake's own packet and one, delivery, to the packet that delivers.
// Those packets have the traces.
var (
	BondType = newType[Bond]("bond").keyedBy("packet_hash").betweenChains().related("bond", PacketType,
		"packet_hash").delivered().
		related("base_token_meta", TokenType, "source_universal_chain_id", "base_token").
		related("remote_base_token_meta", TokenType, "remote_universal_chain_id", "remote_base_token").
		related("remote_quote_token_meta", TokenType, "remote_universal_chain_id", "remote_quote_token")
	UnbondType = newType[Unbond]("unbond").keyedBy("packet_hash").betweenChains().related("packet", PacketType,
		"packet_hash").
		related("base_token_meta", TokenType, "source_universal_chain_id", "base_token")
	WithdrawalType = newType[Withdrawal]("withdraw").keyedBy("packet_hash").betweenChains().related("withdraw",
		PacketType, "packet_hash").delivered().
		related("remote_base_token_meta", TokenType, "remote_universal_chain_id", "remote_base_token")
	DustWithdrawalType = newType[DustWithdrawal]("dust_withdraw").keyedBy("packet_hash").betweenChains().
				related("dust_withdraw", PacketType, "packet_hash").delivered().
				related("remote_base_token_meta", TokenType, "remote_universal_chain_id", "remote_base_token")
)

// delivered adds the relations of a type that has a delivery.
func (t *Type) delivered() *Type {
	return t.related("delivery", PacketType, "delivery_packet_hash").
		related("quote_token_meta", TokenType, "destination_universal_chain_id", "quote_token")
}
