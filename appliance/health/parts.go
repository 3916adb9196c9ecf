package health

import (
	"maps"
	"slices"
	"time"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/stop"
	"github.com/attestd/attestd/appliance/text"
)

// Stop rates the switch that pauses and halts attesting.
func Stop(s stop.State) (all []Finding) {
	if pause := s.Paused; pause != nil {
		all = append(all, Warning("once the reason no longer applies: attestd resume",
			"attesting is paused by %s since %s: %s", pause.By, pause.Time.Format(time.RFC3339), pause.Reason))
	}
	if halt := s.Halted; halt != nil {
		all = append(all, Failure(haltedRemedy,
			"attesting is halted since %s: %s", halt.Time.Format(time.RFC3339), halt.Reason))
	}
	if len(all) == 0 {
		all = append(all, Good("attesting is neither paused nor halted"))
	}
	return all
}

// RecoveryRemedy is the remedy for a part that the daemon repairs.
const RecoveryRemedy = "read the log: journalctl -u attestd; attestd recovers automatically once the cause is gone"

// Part rates a part that reports an error while it fails: the HSM, the journal, the replica. well describes the part
// without an error.
func Part(err error, well string) Finding {
	if err != nil {
		return Failure(RecoveryRemedy, "%s", text.OneLine(err.Error()))
	}
	return Good("%s", well)
}

// Audit rates the last audit of the journal.
func Audit(at time.Time, records, damages int64) Finding {
	if damages > 0 {
		return Failure("list all damage: attestd log verify",
			"the audit of %s found %s faults in %s records", text.Time(at), text.Count(damages), text.Count(records))
	}
	return Good("the audit of %s verified %s records", text.Time(at), text.Count(records))
}

// Disk rates the free space of a folder, in bytes. Below least, nothing is signed.
func Disk(dir string, free, total, least int64) Finding {
	const remedy = "free some space, or move data_dir to a larger disk"
	switch {
	case free < least:
		return Failure(remedy, "%s: %s free; attestd does not sign below %s (journal.min_free)", dir,
			config.RoundedSize(free), config.Size(least))
	case free < 10*least:
		return Warning(remedy, "%s: only %s free of %s; attestd does not sign below %s (journal.min_free)", dir,
			config.RoundedSize(free), config.RoundedSize(total), config.Size(least))
	}
	return Good("%s: %s free of %s", dir, config.RoundedSize(free), config.RoundedSize(total))
}

// CertificateWarning is the time before a certificate's end at which Certificate warns.
const CertificateWarning = 30 * 24 * time.Hour

// Certificate rates the end of the API's certificate.
func Certificate(ends, now time.Time) Finding {
	const renew = "renew the certificate, then: systemctl reload attestd"
	switch left := ends.Sub(now); {
	case left < 0:
		return Failure(renew, "expired %s", text.Time(ends))
	case left < CertificateWarning:
		return Warning(renew, "expires %s, in %d days", text.Time(ends), int(left.Hours()/24))
	}
	return Good("valid until %s", text.Time(ends))
}

// Backups are the backups that the running daemon made.
type Backups struct {
	Complete time.Time // end of the last complete one, also of an earlier daemon; zero if none is known
	Failed   time.Time // end of a later one that failed; zero if none did
	Failure  error     // why that one failed
	Since    time.Time // start of the daemon
}

// Backup rates the backups. An older one than maxAge is a failure; 0 accepts any age. Without a backup there is no
// finding until maxAge has passed.
func Backup(b Backups, maxAge time.Duration, now time.Time) []Finding {
	const remedy = "make another one: attestd backup FILE; systemctl enable --now attestd-backup.timer makes one each night"
	last := b.Complete
	if last.IsZero() {
		last = b.Since
	}
	switch late := maxAge > 0 && now.Sub(last) > maxAge; {
	case !b.Failed.IsZero():
		return []Finding{Failure(remedy, "the backup of %s failed: %s", text.Time(b.Failed), text.OneLine(b.Failure.Error()))}
	case late && b.Complete.IsZero():
		return []Finding{Failure(remedy, "no backup is known, and attestd has run longer than %s (backup.max_age)", maxAge)}
	case late:
		return []Finding{Failure(remedy, "the last complete backup was made at %s, longer ago than %s (backup.max_age)",
			text.Time(b.Complete), maxAge)}
	case b.Complete.IsZero():
		return nil
	}
	return []Finding{Good("the last complete backup was made at %s", text.Time(b.Complete))}
}

// memberLate is how long a member of a cluster may be silent. Members report every few seconds.
const memberLate = time.Minute

// Member is an appliance that shares the store.
type Member struct {
	Name     string
	LastSeen time.Time
}

// Cluster rates the appliances that share a store. differences are the settings that differ between them and must not,
// each with its remedy.
func Cluster(members []Member, differences map[string]string, now time.Time) (all []Finding) {
	for _, m := range members {
		if silent := now.Sub(m.LastSeen); silent > memberLate {
			all = append(all, Warning("start attestd on it, or if it is gone for good: attestd cluster status",
				"%s was last seen %s ago", m.Name, silent.Round(time.Second)))
		}
	}
	for _, difference := range slices.Sorted(maps.Keys(differences)) {
		all = append(all, Failure(differences[difference], "the members differ in %s", difference))
	}
	if len(all) == 0 {
		all = append(all, Good("%d members, and their settings agree", len(members)))
	}
	return all
}
