package console

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/approval"
	"github.com/attestd/attestd/appliance/journal"
)

// approvalsPage lists the requests that wait for people. They approve with passkeys (WebAuthn). The passkey is the
// authority, not the role: an auditor sees the addresses, and approves if an approver's passkey signs.
func approvalsPage() page {
	return page{name: "approvals", path: "/approvals", title: "Approvals", least: Auditor, routes: []route{
		{"GET /approvals", Auditor, showApprovals},
		{"POST /approvals/{id}/approve", Auditor, approve},
		{"POST /approvals/{id}/deny", Operator, denyApproval},
		{"POST /approvers", Operator, enrolApprover},
		{"POST /approvers/remove", Operator, removeApprover},
	}}
}

// approvalsView holds the waiting requests, the decided ones, and the approvers.
type approvalsView struct {
	Waiting, Done []approvalRow
	Approvers     []approverRow
	Wrong         string // why the last action failed
	RPID          string // relying party of passkeys that are made on this page: its host name
	Writes        bool   // the user may deny, enrol and remove
	Possible      bool   // the page's host name can have passkeys
}

// approvalRow is an approval with the data of its buttons.
type approvalRow struct {
	approval.Listed
	What      string
	Challenge string // base64url
	Passkeys  string // ids that may sign, separated by spaces
	From      string // the relying party of these
}

// approverRow is a passkey.
type approverRow struct {
	approval.Approver
	Short string // start of the fingerprint
}

func showApprovals(w http.ResponseWriter, v *visit) error { return v.showApprovals(w, "") }

func (v *visit) showApprovals(w http.ResponseWriter, wrong string) error {
	all, err := v.Admin.Approvals(v.Context())
	if err != nil {
		return err
	}
	people, err := v.Admin.Approvers(v.Context())
	if err != nil {
		return err
	}
	data := approvalsView{Wrong: wrong, RPID: v.hostname(), Writes: v.IsOperator()}
	data.Possible = data.RPID == "localhost" || net.ParseIP(data.RPID) == nil && v.console.secure()
	for _, one := range all {
		row := approvalRowOf(one, data.RPID)
		if one.State == approval.Waiting {
			data.Waiting = append(data.Waiting, row)
		} else {
			data.Done = append(data.Done, row)
		}
	}
	for _, who := range people {
		data.Approvers = append(data.Approvers, approverRow{who, who.Fingerprint()[:16]})
	}
	return v.show(w, data)
}

// hostname returns the host name of the page, which was checked.
func (v *visit) hostname() string {
	if name, _, err := net.SplitHostPort(v.Host); err == nil {
		return strings.ToLower(name)
	}
	return strings.ToLower(v.Host)
}

func approvalRowOf(one approval.Listed, rpID string) approvalRow {
	row := approvalRow{Listed: one, From: rpID,
		Challenge: base64.RawURLEncoding.EncodeToString(one.Challenge)}
	switch one.Kind {
	case journal.EventApproverEnrolled:
		row.What = fmt.Sprintf("Enrol %s, passkey %s", one.Approver.Name, one.Approver.Fingerprint()[:16])
	case journal.EventApproverRemoved:
		row.What = "Remove " + one.Approver.Name
	default:
		row.What = "Attestation"
	}
	var ids []string
	for _, key := range one.Passkeys {
		if key.RPID == rpID {
			ids = append(ids, key.ID)
		}
	}
	row.Passkeys = strings.Join(ids, " ")
	return row
}

// acted shows the page again after an action, with the reason if it failed.
func (v *visit) acted(w http.ResponseWriter, err error) error {
	if problem, refused := errors.AsType[*client.Problem](err); refused && problem.Status < 500 {
		return v.showApprovals(w, strings.TrimSpace(problem.Field+" "+problem.Detail))
	}
	if err != nil {
		return err
	}
	return v.redirect(w, "/approvals")
}

// approve takes an assertion of the browser's authenticator.
func approve(w http.ResponseWriter, v *visit) error {
	id, err := uuid.Parse(v.PathValue("id"))
	if err != nil {
		return v.showApprovals(w, "The approval does not exist.")
	}
	if err := v.ParseForm(); err != nil {
		return formError(err)
	}
	proof := approval.Assertion{Credential: v.PostForm.Get("credential")}
	for name, into := range map[string]*[]byte{"authenticatorData": &proof.AuthenticatorData,
		"clientData": &proof.ClientData, "signature": &proof.Signature} {
		if *into, err = base64.RawURLEncoding.DecodeString(v.PostForm.Get(name)); err != nil {
			return v.showApprovals(w, "The browser sent a "+name+" that is not base64url.")
		}
	}
	_, err = v.Admin.Approve(v.Context(), id, proof)
	return v.acted(w, err)
}

func denyApproval(w http.ResponseWriter, v *visit) error {
	id, err := uuid.Parse(v.PathValue("id"))
	if err != nil {
		return v.showApprovals(w, "The approval does not exist.")
	}
	_, err = v.Admin.Deny(v.Context(), id)
	return v.acted(w, err)
}

// enrolApprover takes a passkey that the browser has made.
func enrolApprover(w http.ResponseWriter, v *visit) error {
	if err := v.ParseForm(); err != nil {
		return formError(err)
	}
	key, err := base64.RawURLEncoding.DecodeString(v.PostForm.Get("publicKey"))
	if err != nil || len(key) == 0 {
		return v.showApprovals(w, "The browser made no passkey. This page needs JavaScript.")
	}
	_, err = v.Admin.EnrolApprover(v.Context(), wire.Enrolment{Name: strings.TrimSpace(v.PostForm.Get("name")),
		Credential: v.PostForm.Get("credential"), PublicKey: key, RPID: v.hostname()})
	return v.acted(w, err)
}

func removeApprover(w http.ResponseWriter, v *visit) error {
	_, err := v.Admin.RemoveApprover(v.Context(), v.PostFormValue("name"))
	return v.acted(w, err)
}
