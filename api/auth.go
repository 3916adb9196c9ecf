package api

import (
	"net/netip"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/appliance"
)

// admit checks who may use a route and how often. Only requests without a valid key count against their client address,
// so that someone who floods the server or guesses keys cannot stop a caller with a key behind the same address.
func (s *Server) admit(c *fiber.Ctx, x *exchange, r Route, own limiter[netip.Addr]) error {
	if r.Probe {
		return nil
	}
	refusal := s.identify(c, x, r.Scope)
	if status := statuses[appliance.CodeOf(refusal)]; status != fiber.StatusUnauthorized && status != fiber.StatusForbidden {
		if refusal != nil || r.Scope == "" {
			return refusal
		}
		rate := x.key.Rate
		if rate == (appliance.Rate{}) {
			rate = s.rates.Load().key
		}
		return s.limited(s.keyRates.take(x.key.ID, rate, s.now()), byKey)
	}
	if r.Scope == "" && (r.Rate != appliance.Rate{}) {
		return s.limited(own.take(network(x.ip), r.Rate, s.now()), byAddress)
	}
	if err := s.anonymousRates.take(network(x.ip), s.rates.Load().anonymous, s.now()); err != nil {
		return s.limited(err, byAddress)
	}
	if r.Scope == "" {
		return nil
	}
	return refusal
}

// identify puts the API key of the request into x. Its error says why the key cannot be used for the scope.
func (s *Server) identify(c *fiber.Ctx, x *exchange, scope appliance.Scope) error {
	key, err := s.authenticate(c)
	if err != nil {
		return err
	}
	x.key = key
	if scope == "" {
		return nil
	}
	return key.Authorize(scope, x.ip, s.now())
}

func (s *Server) authenticate(c *fiber.Ctx) (appliance.APIKey, error) {
	tokens := c.Context().Request.Header.PeekAll("X-Api-Key")
	if len(tokens) > 1 {
		return appliance.APIKey{}, appliance.Errorf(appliance.CodeInvalidAPIKey, "there must be one x-api-key header")
	}
	token := ""
	if len(tokens) == 1 {
		token = string(tokens[0])
	}
	ctx, cancel := s.deadline()
	defer cancel()
	return appliance.Authenticate(ctx, s.attestor.Keys, token)
}

// limited counts err, if any, and returns it.
func (s *Server) limited(err error, by string) error {
	if err != nil && s.metrics != nil {
		s.metrics.limited.WithLabelValues(by).Inc()
	}
	return err
}

// Key returns the API key of a request, for the handlers of Options.Routes. Its ID is empty if there was no valid key.
func Key(c *fiber.Ctx) appliance.APIKey { return exchangeOf(c.Context()).key }
