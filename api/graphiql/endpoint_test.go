package graphiql_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/gofiber/fiber/v2"
	"github.com/graph-gophers/graphql-go"
)

// guard asks for the key on the one query that the browser test sends with it.
func guard(c *fiber.Ctx) error {
	if strings.Contains(string(c.Body()), "query Secret") && c.Get("x-api-key") != "opensesame" {
		return c.Status(fiber.StatusUnauthorized).JSON(fiber.Map{"errors": []fiber.Map{{"message": "no key"}}})
	}
	return c.Next()
}

func endpoint(t *testing.T) fiber.Handler {
	schema := graphql.MustParseSchema(stubSchema, &stub{}, graphql.UseFieldResolvers())
	newer := regexp.MustCompile(`__schema \{\s+description|isRepeatable`)
	return func(c *fiber.Ctx) error {
		var request struct {
			Query         string         `json:"query"`
			OperationName string         `json:"operationName"`
			Variables     map[string]any `json:"variables"`
		}
		if err := json.Unmarshal(c.Body(), &request); err != nil {
			return fiber.ErrBadRequest
		}
		request.Query = newer.ReplaceAllStringFunc(request.Query, func(s string) string {
			if strings.HasPrefix(s, "__schema") {
				return "__schema {"
			}
			return ""
		})
		return c.JSON(schema.Exec(c.UserContext(), request.Query, request.OperationName, request.Variables))
	}
}

const stubSchema = `
directive @cached(ttl: Int! = 60) on QUERY
enum ComparisonOp { lt gt }
input v2_transfers_args { p_limit: Int, p_sort_order: String, p_comparison: ComparisonOp }
input v2_packets_args { p_limit: Int, p_transaction_hash: String }
input v2_tokens_args { p_universal_chain_id: String }
input days { p_days_back: Int }
type Query {
  v2_transfers(args: v2_transfers_args): [T!]!
  v2_packets(args: v2_packets_args): [P!]!
  v2_tokens(args: v2_tokens_args): [M!]!
  v2_stats_count: [S!]!
  v2_stats_transfers_daily_count(args: days): [D!]!
}
type T { sender_canonical: String receiver_canonical: String base_amount: String base_token_meta: M
  source_universal_chain_id: String destination_universal_chain_id: String
  transfer_send_timestamp: String transfer_send_transaction_hash: String sort_order: String }
type P { source_universal_chain_id: String destination_universal_chain_id: String status: String decoded: String
  traces: [R!]! sort_order: String }
type R { type: String universal_chain_id: String transaction_hash: String height: String timestamp: String }
type M { denom: String universal_chain_id: String representations: [N!]! }
type N { name: String symbol: String decimals: Int }
type S { name: String value: String }
type D { day_date: String count: String }
`

type (
	stub struct{}
	row  struct {
		Sender_canonical, Receiver_canonical, Base_amount                   *string
		Base_token_meta                                                     *token
		Source_universal_chain_id, Destination_universal_chain_id           *string
		Transfer_send_timestamp, Transfer_send_transaction_hash, Sort_order *string
	}
	packet struct {
		Source_universal_chain_id, Destination_universal_chain_id, Status, Decoded, Sort_order *string
		Traces                                                                                 []trace
	}
	trace struct{ Type, Universal_chain_id, Transaction_hash, Height, Timestamp *string }
	token struct {
		Denom, Universal_chain_id *string
		Representations           []name
	}
	name struct {
		Name, Symbol *string
		Decimals     *int32
	}
	stat struct{ Name, Value *string }
	day  struct{ Day_date, Count *string }
)

func ptr[T any](v T) *T { return &v }

func someToken() *token {
	return &token{Denom: ptr("0x6175"), Universal_chain_id: ptr("union.union-1"), Representations: []name{{Name: ptr("Union"), Symbol: ptr("U"), Decimals: ptr(int32(18))}}}
}

func (stub) V2_transfers(struct {
	Args *struct {
		P_limit      *int32
		P_sort_order *string
		P_comparison *string
	}
}) []row {
	rows := make([]row, 10)
	for i := range rows {
		rows[i] = row{Sender_canonical: ptr("0x15ee7c367f4232241028c36e720803100757c6e9"), Receiver_canonical: ptr("0x15ee7c367f4232241028c36e720803100757c6e9"), Base_amount: ptr("1000000000000000000"), Base_token_meta: someToken(), Source_universal_chain_id: ptr("union.union-1"), Destination_universal_chain_id: ptr("ethereum.1"), Transfer_send_timestamp: ptr("2026-01-01T00:00:00Z"), Transfer_send_transaction_hash: ptr("0xabc1"), Sort_order: ptr("x")}
	}
	return rows
}

func (stub) V2_packets(struct {
	Args *struct {
		P_limit            *int32
		P_transaction_hash *string
	}
}) []packet {
	return []packet{{Status: ptr("PACKET_ACK"), Traces: []trace{{Type: ptr("SEND_PACKET")}}}}
}
func (stub) V2_tokens(struct {
	Args *struct{ P_universal_chain_id *string }
}) []token {
	return []token{*someToken()}
}
func (stub) V2_stats_count() []stat { return []stat{{ptr("total_transfers"), ptr("10")}} }
func (stub) V2_stats_transfers_daily_count(struct{ Args *struct{ P_days_back *int32 } }) []day {
	return []day{{ptr("2026-01-01"), ptr("10")}}
}
