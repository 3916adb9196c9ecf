package zkgm

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/big"
	"reflect"
	"strings"
	"testing"
)

// calldataOf returns the input of a proxy: each message is base64 of JSON.
func calldataOf(messages ...string) []byte {
	var list []string
	for _, m := range messages {
		list = append(list, fmt.Sprintf(`{"wasm":{"execute":{"contract_addr":"union1x","funds":[],"msg":%q}}}`, base64.StdEncoding.EncodeToString([]byte(m))))
	}
	return []byte("[" + strings.Join(list, ",") + "]")
}

// Messages that the hub and the staked token accept.
const (
	bondMessage   = `{"bond":{"mint_to_address":"union1x","min_mint_amount":"1"}}`
	unbondMessage = `{"unbond":{"amount":"1"}}`
	allowMessage  = `{"increase_allowance":{"spender":"union1x","amount":"1"}}`
)

func TestStake(t *testing.T) {
	order := &TokenOrderV2{
		Sender: []byte("union1proxy"), Receiver: []byte{1}, BaseToken: []byte("eu"), BaseAmount: big.NewInt(5), QuoteToken: []byte{4},
		QuoteAmount: big.NewInt(6), Kind: OrderSolve, Metadata: []byte{},
	}
	send := `{"send":{"channel_id":7,"timeout_height":"0","timeout_timestamp":"1","salt":"0x00","instruction":"0x` + hex.EncodeToString(order.Instruction().Encode()) + `"}}`
	withdraw := func(batch int) string {
		return fmt.Sprintf(`{"withdraw":{"withdraw_to_address":"union1x","batch_id":%d}}`, batch)
	}
	call := func(messages ...string) Instruction {
		return (&Call{Sender: []byte{1}, ContractAddress: []byte("union1proxy"), ContractCalldata: calldataOf(messages...)}).Instruction()
	}
	brings := func(called Instruction) Instruction {
		return (&Batch{Instructions: []Instruction{orderV2.Instruction(), called}}).Instruction()
	}
	for _, test := range []struct {
		name    string
		i       Instruction
		kind    StakeKind
		batches string
	}{
		{"a bond", brings(call(bondMessage, allowMessage, send)), Bond, "[]"},
		{"an unbond", brings(call(allowMessage, unbondMessage)), Unbond, "[]"},
		{"a withdrawal", call(withdraw(3), send), Withdraw, "[3]"},
		{"a withdrawal of two batches", call(withdraw(3), withdraw(9), send), Withdraw, "[3 9]"},
		{"a dust withdrawal", call(allowMessage, send), DustWithdraw, "[]"},

		{"a bond without tokens", call(bondMessage, allowMessage, send), 0, ""},
		{"a withdrawal with tokens", brings(call(withdraw(3), send)), 0, ""},
		{"a bond that is not delivered", brings(call(bondMessage)), 0, ""},
		{"a withdrawal behind the delivery", call(withdraw(3), send, withdraw(4)), 0, ""},
		{"a send alone", call(send), 0, ""},
		{"something else", call(`{"mint":{}}`, send), 0, ""},
		{"two actions in a message", call(`{"bond":{},"send":{}}`), 0, ""},
		{"a send of no instruction", brings(call(bondMessage, allowMessage, `{"send":{"channel_id":7,"instruction":"0x00"}}`)), 0, ""},
		{"a withdrawal of a batch as text", call(`{"withdraw":{"batch_id":"12"}}`, send), Withdraw, "[12]"},
		{"a withdrawal of no batch", call(`{"withdraw":{"withdraw_to_address":"union1x"}}`, send), 0, ""},
		{"a withdrawal of half a batch", call(`{"withdraw":{"batch_id":1.5}}`, send), 0, ""},
		{"a withdrawal of a batch in capitals", call(`{"withdraw":{"Batch_id":3}}`, send), 0, ""},
		{"calldata that is no JSON", (&Call{ContractCalldata: []byte("[wasm")}).Instruction(), 0, ""},
		{"a transfer", orderV2.Instruction(), 0, ""},
		{"a batch of three", (&Batch{Instructions: []Instruction{orderV2.Instruction(), call(allowMessage, unbondMessage), orderV2.Instruction()}}).Instruction(), 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, ok := Packet{Instruction: test.i}.Stake()
			if ok != (test.kind != 0) || ok && s.Kind != test.kind {
				t.Fatalf("%+v, %v", s, ok)
			}
			if !ok {
				return
			}
			if fmt.Sprint(s.Batches) != test.batches || string(s.Staker) != "\x01" {
				t.Errorf("batches %v of %x", s.Batches, s.Staker)
			}
			if delivered := s.Delivery.Order != nil; delivered != (test.kind != Unbond) || delivered && (s.Delivery.Channel != 7 || !reflect.DeepEqual(s.Delivery.Order, order)) {
				t.Errorf("delivery %+v", s.Delivery)
			}
		})
	}
}

// Calldata that the hub and the proxy reject is not a stake: they are case-sensitive and reject duplicate members.
func TestCalldataIsReadAsTheContractsReadIt(t *testing.T) {
	plain := string(calldataOf(allowMessage, unbondMessage))
	for name, calldata := range map[string]string{
		"":                         plain,
		"a message in capitals":    strings.Replace(plain, "wasm", "WASM", 1),
		"its members in capitals":  strings.Replace(plain, "msg", "Msg", 1),
		"a member twice":           strings.Replace(plain, `"msg"`, `"msg":"e30=","msg"`, 1),
		"an action in capitals":    string(calldataOf(allowMessage, strings.Replace(unbondMessage, "unbond", "Unbond", 1))),
		"an action twice":          string(calldataOf(allowMessage, `{"unbond":{"amount":"1"},"unbond":{"amount":"2"}}`)),
		"something behind it":      plain + "[]",
		"text that is not UTF-8":   strings.Replace(plain, "union1x", "\xff", 1),
		"base64 that is not whole": strings.Replace(plain, `"}}}`, `A"}}}`, 1),
	} {
		called := &Call{Sender: []byte{1}, ContractAddress: []byte("union1proxy"), ContractCalldata: []byte(calldata)}
		batch := &Batch{Instructions: []Instruction{orderV2.Instruction(), called.Instruction()}}
		if s, ok := (Packet{Instruction: batch.Instruction()}).Stake(); ok != (name == "") {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
