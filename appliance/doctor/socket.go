package doctor

import (
	"context"
	"os/exec"
	"strings"

	"github.com/attestd/attestd/appliance/config"
)

// socketUnit is attestd.socket as systemd knows it; the zero one where there is none.
type socketUnit struct {
	enabled, active bool
	state           string   // as systemd calls it: inactive, failed, …
	listen          []string // addresses and paths
}

// askSystemd asks for attestd.socket. Without systemd there is none.
func askSystemd(ctx context.Context) (u socketUnit) {
	out, err := exec.CommandContext(ctx, "systemctl", "show", "attestd.socket", "--property=UnitFileState,ActiveState,Listen").Output()
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

// checkSocket finds a socket that somebody wants and nobody has: clients are refused, whatever the daemon does.
func checkSocket(_ context.Context, p *subject) []Finding {
	at := strings.Join(p.socket.listen, ", ")
	switch {
	case p.socket.enabled && !p.socket.active:
		return []Finding{fail("systemctl stop attestd && systemctl start attestd.socket attestd",
			"attestd.socket is enabled, but %s: nothing listens on %s", p.socket.state, at)}
	case p.socket.active:
		return []Finding{ok("systemd listens on %s", at)}
	}
	return nil
}

// openAddresses are those of the API that other machines may reach.
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
