package daemon

import (
	"time"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/hsm"
)

// surroundings returns the part of a status that needs neither the HSM nor the journal.
func (r *running) surroundings() wire.Surroundings {
	usage := r.signer.usage()
	s := wire.Surroundings{
		API:   "http://" + r.servers.address.String(),
		Store: r.storeInUse(),
		HSM: &wire.HSMUse{
			Ready: usage.Ready, SessionsInUse: usage.InUse, Sessions: usage.Sessions, MostSessions: usage.MostSessions,
			Signatures: usage.Signatures, WrongSignatures: usage.WrongSignatures, Waiting: r.attestor.Waiting(),
		},
	}
	if r.servers.console != nil {
		s.Console = r.servers.console.String()
	}
	var ends time.Time
	if r.servers.certificates != nil {
		s.API, ends = "https://"+r.servers.address.String(), r.servers.certificates.Ends()
	}
	s.Machine = Machine(r.config, ends, time.Now())
	return s
}

func (r *running) storeInUse() string {
	c := *r.config
	if r.store.Database != nil {
		c.Store.URL = config.DatabaseURL(r.store.Database.URL()) // as of the last reload
	}
	return StoreName(&c)
}

// StoreName names the store of a configuration: the database's URL without its password, or bolt:DATA_DIR.
func StoreName(c *config.Config) string {
	if c.Store.URL != "" {
		return string(c.Store.URL.WithoutPassword())
	}
	return "bolt:" + c.DataDir
}

// usage returns the usage of the default key.
func (s *signers) usage() hsm.Usage {
	for _, k := range s.states() {
		if k.standard && k.tokens != nil {
			return k.tokens.Usage()
		}
	}
	return hsm.Usage{}
}
