package ui

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/catalog"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// TestReservationsAreListed opens the page of a cluster with a reservation of which a machine runs, and with a capacity block. The list goes with the reservations.
func TestReservationsAreListed(t *testing.T) {
	t.Parallel()
	tabs := browse(t)
	c := Shared()
	Reserve(c, catalog.Reservation{ID: "cr-0a", InstanceType: "g4dn.xlarge", Free: 2, Total: 5, End: Now.Add(49 * time.Hour)})
	Reserve(c, catalog.Reservation{ID: "cr-0b", InstanceType: "g4dn.12xlarge", Free: 1, Total: 1, End: Now.Add(160 * time.Minute), Leaves: Now.Add(2 * time.Hour)})
	kind := TypeNamed("g4dn.xlarge")
	claim := Claim("slot", &c.NodePools[0], kind, Reserved("cr-0a"), Initialized(Now.Add(-time.Hour)))
	c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, Node(&claim, kind, 10))
	s := &source{}
	s.show(c)
	p := open(t, tabs, s.serve(t)+"/#token="+token)
	p.until(`document.querySelectorAll("#slots tbody tr").length === 2`)
	rows := value[[]string](p, `[...document.querySelectorAll("#slots tbody tr")].map((tr) => [...tr.children].map((td) => td.textContent).join(" | "))`)
	for i, want := range []string{
		"cr-0a | g4dn.xlarge | us-east-1a | 1 | 2 | 2 | $1.052 | 20 nvidia.com/gpu.shared in gpu-shared | Mar ",
		"cr-0b | g4dn.12xlarge | us-east-1a | 0 | 1 | 0 | $3.912 | 40 nvidia.com/gpu.shared in gpu-shared | Mar ",
	} {
		if !strings.HasPrefix(rows[i], want) || strings.HasSuffix(rows[i], ", with its nodes") != (i == 1) {
			t.Errorf("the row is %q, want %q", rows[i], want)
		}
	}
	if got := p.text("reservations-price"); got != "$4.964 /h for free machines" {
		t.Error(got)
	}
	picture(p, "reservations")
	s.show(fleet(3))
	p.until(`document.getElementById("reservations").hidden && ` + fmt.Sprintf("document.getElementById(%q).textContent === %q", "nodes", "3"))
}
