package doctor

import (
	"context"
	"os/exec"
	"strings"

	"github.com/attestd/attestd/appliance/config"
)

// socketUnit is the state of attestd.socket in systemd. It is zero if the unit does not exist.
type socketUnit struct {
	enabled, active bool
	state           string   // in systemd's words: inactive, failed, …
	listen          []string // addresses and paths
}

// askSystemd returns the state of attestd.socket. Without systemd, it returns the zero value.
func askSystemd(ctx context.Context) (u socketUnit) {
	out, err := exec.CommandContext(ctx,
		"systemctl", "show", "attestd.socket", "--property=UnitFileState,ActiveState,Listen").Output()
	if err != nil {
		return u
	}
	for line := range strings.Lines(string(out)) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), "="); name {
		case "UnitFileState":
			u.enabled = strings.HasPrefix(value, "enabled")
		case "ActiveState":
			u.active, u.state = value == "active", value
		case "Listen": // "[::]:443 (Stream)"
			address, _, _ := strings.Cut(value, " ")
			u.listen = append(u.listen, address)
		}
	}
	return u
}

// checkSocket reports a socket unit that is enabled but inactive: clients are refused, even while the daemon runs.
func checkSocket(_ context.Context, p *subject) []Finding {
	at := strings.Join(p.socket.listen, ", ")
	switch {
	case p.socket.enabled && !p.socket.active:
		return []Finding{fail("systemctl stop attestd && systemctl start attestd.socket attestd",
			"attestd.socket is enabled, but %s: clients cannot connect to %s", p.socket.state, at)}
	case p.socket.active:
		return []Finding{ok("systemd listens on %s", at)}
	}
	return nil
}

// openAddresses returns the API's addresses that other machines may reach.
func (p *subject) openAddresses() (open []string) {
	addresses := []string{p.config.Server.Listen}
	if p.socket.active || p.socket.enabled {
		addresses = p.socket.listen // server.listen is not used then
	}
	for _, address := range addresses {
		if !strings.HasPrefix(address, "/") && !config.IsLoopback(address) {
			open = append(open, address)
		}
	}
	return open
}
