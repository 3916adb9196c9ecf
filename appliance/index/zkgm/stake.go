package zkgm

import (
	"bytes"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// StakeKind is a packet's request to the liquid staking hub.
type StakeKind uint8

// The kinds of stakes.
const (
	Bond         StakeKind = iota + 1 // tokens for staked tokens
	Unbond                            // staked tokens for a claim
	Withdraw                          // claims for the redeemed tokens
	DustWithdraw                      // staked tokens that remained at the proxy
)

// Stake is a packet that calls the sender's proxy on the chain of the staking hub. The proxy executes the calldata: a
// JSON list of messages to contracts (CosmWasm).
type Stake struct {
	Kind   StakeKind
	Staker []byte // the sender of the call
	// Order brings the tokens of a bond or of an unbond; nil for the other kinds.
	Order *TokenOrderV2
	// Delivery sends the tokens back. Unbond has no delivery.
	Delivery Delivery
	Batches  []uint64 // the withdrawn batches
}

// Delivery is a packet that the proxy sends.
type Delivery struct {
	Channel     uint32 // the channel that it is sent on
	Instruction Instruction
	Order       *TokenOrderV2
}

// Stake reads a packet as a stake; ok is false for other packets.
func (p Packet) Stake() (s Stake, ok bool) {
	o, err := p.Instruction.Operation()
	if err != nil {
		return s, false
	}
	call, isCall := o.(*Call)
	if batch, isBatch := o.(*Batch); isBatch && len(batch.Instructions) == 2 {
		order, orderErr := batch.Instructions[0].Operation()
		called, callErr := batch.Instructions[1].Operation()
		if orderErr != nil || callErr != nil {
			return s, false
		}
		s.Order, _ = order.(*TokenOrderV2)
		call, isCall = called.(*Call)
		isCall = isCall && s.Order != nil
	}
	if !isCall {
		return s, false
	}
	s.Staker = call.Sender
	return s, s.read(messagesOf(call.ContractCalldata))
}

// read derives the stake from the proxy's messages.
func (s *Stake) read(messages []message) bool {
	var steps []string
	allowance := false
	for _, m := range messages {
		if m.does == "increase_allowance" {
			allowance = true
			continue
		}
		if m.does == "withdraw" {
			id, err := m.what.batch()
			if err != nil {
				return false
			}
			s.Batches = append(s.Batches, id)
			if n := len(steps); n > 0 && steps[n-1] == m.does {
				continue // any number of withdrawals is one step
			}
		}
		if m.does == "send" && !s.Delivery.read(m.what) {
			return false
		}
		steps = append(steps, m.does)
	}
	switch done := strings.Join(steps, " "); {
	case done == "bond send" && s.Order != nil:
		s.Kind = Bond
	case done == "unbond" && s.Order != nil:
		s.Kind = Unbond
	case done == "withdraw send" && s.Order == nil:
		s.Kind = Withdraw
	case done == "send" && allowance && s.Order == nil:
		s.Kind = DustWithdraw
	}
	return s.Kind != 0
}

func (d *Delivery) read(what content) bool {
	raw, err := hex.DecodeString(strings.TrimPrefix(what.Instruction, "0x"))
	if err != nil {
		return false
	}
	r := &reader{in: raw}
	d.Channel, d.Instruction = what.Channel, readInstruction(r)
	if r.err != nil {
		return false
	}
	o, err := d.Instruction.Operation()
	if err != nil {
		return false
	}
	order, isOrder := o.(*TokenOrderV2)
	d.Order = order
	return isOrder
}

// message is an action of a contract with its arguments.
type message struct {
	does string
	what content
}

// content holds the arguments that stakes need.
type content struct {
	Channel     uint32         `json:"channel_id"`
	Instruction string         `json:"instruction"`
	BatchID     jsontext.Value `json:"batch_id"` // a number, or a string with a number
}

func (c content) batch() (uint64, error) {
	return strconv.ParseUint(strings.Trim(string(c.BatchID), `"`), 10, 64)
}

// messagesOf parses calldata. It returns nil unless the calldata is a list of messages of one action each. Like the
// contracts, it distinguishes Wasm from wasm and rejects duplicate members.
func messagesOf(calldata []byte) (messages []message) {
	if !bytes.HasPrefix(calldata, []byte("[")) {
		return nil
	}
	var list []struct {
		Wasm struct {
			Execute struct {
				Msg []byte `json:"msg"` // base64 of JSON
			} `json:"execute"`
		} `json:"wasm"`
	}
	if json.Unmarshal(calldata, &list) != nil {
		return nil
	}
	for _, m := range list {
		var actions map[string]jsontext.Value
		if json.Unmarshal(m.Wasm.Execute.Msg, &actions) != nil || len(actions) != 1 {
			return nil
		}
		for does, raw := range actions {
			made := message{does: does}
			if (does == "send" || does == "withdraw") && json.Unmarshal(raw, &made.what) != nil {
				return nil
			}
			messages = append(messages, made)
		}
	}
	return messages
}
