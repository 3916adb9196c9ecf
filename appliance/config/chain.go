package config

import (
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/attestd/attestd/appliance"
)

// Contract is an entry of chain.contracts.
type Contract struct {
	Name          string        `koanf:"name"`
	RPC           []RPCURL      `koanf:"rpc"`
	Address       string        `koanf:"address"`
	StartBlock    uint64        `koanf:"start_block"`
	Confirmations Confirmations `koanf:"confirmations"`
}

func chainSettings() []Setting {
	return []Setting{
		{"chain.contracts", Objects{
			{"name", "", "name of the contract in the log, the metrics and lists"},
			{"rpc", []string{},
				"URLs of the JSON-RPC of Ethereum nodes, each of which is read: https, or http on this machine. With several, more than half of them must agree"},
			{"address", "", "the contract's address"},
			{"start_block", 0,
				"first block to read: the one in which this appliance's key became the contract's attestor"},
			{"confirmations", "12",
				"number of blocks that must be on top of a block before it is read; or finalized, for the chain's finality"},
		}, "verifying contracts to watch: each redemption is compared with the journal (docs/chain.md)"},
		{"chain.poll_interval", "5s", "interval at which attestd asks for newer blocks"},
		{"chain.halt", false, "if a redemption is not in the journal, stop attesting until attestd resume"},
	}
}

// RPCURL is the URL of an RPC. Its path may be a secret.
type RPCURL string

// String returns the URL without parts that may be secret: user, path and query.
func (u RPCURL) String() string {
	parsed, err := url.Parse(string(u))
	if err != nil || parsed.Host == "" {
		return hiddenValue
	}
	shown := parsed.Scheme + "://" + parsed.Host
	if shown != strings.TrimSuffix(string(u), "/") {
		shown += "/" + hiddenValue
	}
	return shown
}

// Confirmations is a number of blocks, or "finalized".
type Confirmations string

// Finalized is the value of confirmations for blocks that the chain reports as finalized.
const Finalized Confirmations = "finalized"

// maxConfirmations is far above the depth of any reorganisation.
const maxConfirmations = 1_000_000

// Blocks returns the number of blocks, or 0 for Finalized.
func (c Confirmations) Blocks() (uint64, error) {
	if c == Finalized {
		return 0, nil
	}
	n, err := strconv.ParseUint(string(c), 10, 64)
	if err != nil || n > maxConfirmations {
		return 0, fmt.Errorf("%q is not a number of blocks such as 12, or finalized", string(c))
	}
	return n, nil
}

// numberAsText allows confirmations to be written as a number.
func numberAsText(_, to reflect.Type, value any) (any, error) {
	if to == reflect.TypeFor[Confirmations]() {
		return fmt.Sprint(value), nil
	}
	return value, nil
}

var contractName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// maxRPCs bounds the RPCs of a contract.
const maxRPCs = 16

// validateChain checks the chain settings without sending a request.
func (c *Config) validateChain(check func(ok bool, format string, args ...any)) {
	check(c.Chain.PollInterval >= minInterval, "chain.poll_interval: must be at least %s", minInterval)
	check(!c.Chain.Halt || len(c.Chain.Contracts) > 0, "chain.halt: needs chain.contracts, the contracts to watch")
	seen := make(map[string]bool)
	for i, contract := range c.Chain.Contracts {
		one := func(ok bool, format string, args ...any) {
			check(ok, "chain.contracts: entry %d: %s", i+1, fmt.Sprintf(format, args...))
		}
		one(contractName.MatchString(contract.Name), "name: %q is not a name of a-z, 0-9, - and _, such as usdc",
			contract.Name)
		one(!seen[contract.Name], "name: %s is another contract's", contract.Name)
		seen[contract.Name] = true
		_, err := appliance.ParseAddress(contract.Address)
		one(err == nil, "address %v", err)
		_, err = contract.Confirmations.Blocks()
		one(err == nil, "confirmations: %v", err)
		one(len(contract.RPC) > 0 && len(contract.RPC) <= maxRPCs, "rpc: must be 1 to %d URLs", maxRPCs)
		asked := make(map[RPCURL]bool)
		for k, u := range contract.RPC {
			one(!asked[u], "rpc: %d is a duplicate: name a different node", k+1)
			one(!strings.Contains(string(u), hiddenValue),
				"rpc: %d: has the placeholder of attestd config show; write the full URL", k+1)
			asked[u] = true
		}
	}
}
