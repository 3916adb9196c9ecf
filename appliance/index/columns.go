package index

// The columns that code reads by name: the numbers of their fields, as the methods of Row take them. Stores and readers use
// these; what goes over all fields of a type goes over Type.Fields.
var (
	ChainIDColumn              = ChainType.column("universal_chain_id")
	ChainTestnetColumn         = ChainType.column("testnet")
	ChainStatusColumn          = ChainType.column("status")
	ChainStatusTimestampColumn = ChainType.Fields[ChainStatusColumn].Elem.column("timestamp")

	TokenChainColumn     = TokenType.column("universal_chain_id")
	TokenDenomColumn     = TokenType.column("denom")
	TokenRankColumn      = TokenType.column("rank")
	TokenWhitelistColumn = TokenType.column("whitelist")

	ClientChainColumn        = ClientType.column("universal_chain_id")
	ClientCounterpartyColumn = ClientType.column("counterparty_universal_chain_id")
	ClientIDColumn           = ClientType.column("client_id")

	ConnectionSourceChainColumn           = ConnectionType.column("source_universal_chain_id")
	ConnectionSourceClientColumn          = ConnectionType.column("source_client_id")
	ConnectionSourceConnectionColumn      = ConnectionType.column("source_connection_id")
	ConnectionDestinationChainColumn      = ConnectionType.column("destination_universal_chain_id")
	ConnectionDestinationClientColumn     = ConnectionType.column("destination_client_id")
	ConnectionDestinationConnectionColumn = ConnectionType.column("destination_connection_id")

	ChannelSourceChainColumn           = ChannelType.column("source_universal_chain_id")
	ChannelSourceClientColumn          = ChannelType.column("source_client_id")
	ChannelSourceConnectionColumn      = ChannelType.column("source_connection_id")
	ChannelSourceChannelColumn         = ChannelType.column("source_channel_id")
	ChannelSourcePortColumn            = ChannelType.column("source_port_id")
	ChannelDestinationChainColumn      = ChannelType.column("destination_universal_chain_id")
	ChannelDestinationClientColumn     = ChannelType.column("destination_client_id")
	ChannelDestinationConnectionColumn = ChannelType.column("destination_connection_id")
	ChannelDestinationChannelColumn    = ChannelType.column("destination_channel_id")
	ChannelDestinationPortColumn       = ChannelType.column("destination_port_id")
	ChannelVersionColumn               = ChannelType.column("version")
	ChannelSLAColumn                   = ChannelType.column("sla")
	ChannelRecommendedColumn           = ChannelType.column("recommended")
	ChannelTagsColumn                  = ChannelType.column("tags")

	PacketSortOrderColumn          = PacketType.column("sort_order")
	PacketHashColumn               = PacketType.column("packet_hash")
	PacketStatusColumn             = PacketType.column("status")
	PacketChannelVersionColumn     = PacketType.column("channel_version")
	PacketSourceChainColumn        = PacketType.column("source_universal_chain_id")
	PacketSourceChannelColumn      = PacketType.column("source_channel_id")
	PacketDestinationChainColumn   = PacketType.column("destination_universal_chain_id")
	PacketDestinationChannelColumn = PacketType.column("destination_channel_id")
	PacketTimeoutHeightColumn      = PacketType.column("timeout_height")
	PacketTimeoutTimestampColumn   = PacketType.column("timeout_timestamp") // by when it must be received
	PacketSentColumn               = PacketType.column("packet_send_timestamp")
	PacketSendBlockColumn          = PacketType.column("packet_send_block_hash")
	PacketSendTransactionColumn    = PacketType.column("packet_send_transaction_hash")
	PacketReceivedColumn           = PacketType.column("packet_recv_timestamp")
	PacketAckWrittenColumn         = PacketType.column("write_ack_timestamp")
	PacketAckedColumn              = PacketType.column("packet_ack_timestamp")
	PacketTimedOutColumn           = PacketType.column("packet_timeout_timestamp") // when it did
	PacketDataColumn               = PacketType.column("data")
	PacketDecodedColumn            = PacketType.column("decoded")
	PacketDecodedFlattenedColumn   = PacketType.column("decoded_flattened")

	TransferSortOrderColumn         = TransferType.column("sort_order")
	TransferPacketColumn            = TransferType.column("packet_hash")
	TransferIndexColumn             = TransferType.column("transfer_index")
	TransferStatusColumn            = TransferType.column("status")
	TransferSourceChainColumn       = TransferType.column("source_universal_chain_id")
	TransferDestinationChainColumn  = TransferType.column("destination_universal_chain_id")
	TransferSenderCanonicalColumn   = TransferType.column("sender_canonical")
	TransferSenderDisplayColumn     = TransferType.column("sender_display")
	TransferSenderZkgmColumn        = TransferType.column("sender_zkgm")
	TransferReceiverCanonicalColumn = TransferType.column("receiver_canonical")
	TransferReceiverDisplayColumn   = TransferType.column("receiver_display")
	TransferReceiverZkgmColumn      = TransferType.column("receiver_zkgm")
	TransferBaseTokenColumn         = TransferType.column("base_token")
	TransferBaseAmountColumn        = TransferType.column("base_amount")
	TransferQuoteTokenColumn        = TransferType.column("quote_token")
	TransferQuoteAmountColumn       = TransferType.column("quote_amount")
	TransferSentColumn              = TransferType.column("transfer_send_timestamp")
	TransferSendTransactionColumn   = TransferType.column("transfer_send_transaction_hash")
)

// column returns the number of the field of that name.
func (t *Type) column(name string) int { return t.MustField(name).Number }
