package doctor

import (
	"context"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/appliance/webhooks"
)

// longestFailing is how long deliveries to a webhook may fail. The alert AttestdWebhookFailing uses the same.
const longestFailing = 15 * time.Minute

// checkWebhooks checks that the receivers of events accept them.
func checkWebhooks(ctx context.Context, p *subject) (findings []Finding) {
	if !p.running() {
		return nil
	}
	daemon := client.NewAdmin(p.config.Admin.Socket)
	defer func() { _ = daemon.Close() }()
	all, err := daemon.Webhooks(ctx)
	if err != nil {
		return []Finding{warn("read the log: journalctl -u attestd", "webhooks: %s", oneLine(err))}
	}
	for _, s := range all {
		findings = append(findings, judgeWebhook(s, time.Now()))
	}
	return findings
}

func judgeWebhook(s webhooks.Status, now time.Time) Finding {
	again := "correct the receiver, then run: attestd webhook redeliver " + s.Name
	switch {
	case s.Operator:
		return ok("%s: an operator disabled it on %s; to enable it: attestd webhook enable %[1]s", s.Name,
			text.Time(s.Disabled))
	case !s.Disabled.IsZero():
		return fail(again, "%s: disabled since %s: %s", s.Name, text.Time(s.Disabled), s.Reason)
	case !s.Failing.IsZero() && now.Sub(s.Failing) > longestFailing:
		return warn(again, "%s: failing since %s, %s events wait: %s", s.Name, text.Time(s.Failing), text.Count(s.Waiting),
			s.LastError)
	}
	return ok("%s: %s events delivered", s.Name, text.Count(s.Delivered))
}
