package dra

import (
	"os"
	"path/filepath"
	"regexp"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/atomicfile"
)

// Claim is a ResourceClaim that is prepared on this node.
type Claim struct {
	UID       string     `json:"uid"`
	Namespace string     `json:"namespace"`
	Name      string     `json:"name"`
	Devices   []Prepared `json:"devices"`
}

// Prepared is a share of a GPU or MIG instance that a claim holds.
type Prepared struct {
	// Request is the name of the request in the claim. Device is that of the device in the ResourceSlice. ShareID is that of the share, or "".
	Request string `json:"request"`
	Device  string `json:"device"`
	ShareID string `json:"shareID,omitempty"`
	// UUID is the UUID of the GPU or MIG instance.
	UUID string `json:"uuid"`
	// Replicas are the numbers of the replicas that the claim holds.
	Replicas []int `json:"replicas"`
}

// validUID matches the UIDs of claims, which are used in file names.
var validUID = regexp.MustCompile(`^[0-9A-Za-z][-0-9A-Za-z]{0,127}$`)

// idsIn returns the device IDs that a share of a claim holds. shared reports whether a device has several replicas.
func idsIn(claims map[string]Claim, namespace, name, device, shareID string, shared func(uuid string) bool) []string {
	var ids []string
	for _, c := range claims {
		if c.Namespace != namespace || c.Name != name {
			continue
		}
		for _, p := range c.Devices {
			if p.Device != device || p.ShareID != shareID {
				continue
			}
			if !shared(p.UUID) {
				ids = append(ids, p.UUID)
				continue
			}
			for _, n := range p.Replicas {
				ids = append(ids, alloc.ID(p.UUID, n))
			}
		}
	}
	return ids
}

// formerRecord is the file in the state directory in which drivers of Karve 0.1 record claims. Without the file they know none, and with a version that
// they do not know they read the CDI specs. It can go when nobody rolls back to 0.1.
const formerRecord, formerContent = "dra-claims.json", `{"version":2}`

// writeFile atomically replaces a file in a directory, which it creates if necessary. The container runtime must be able to read CDI specs.
func writeFile(dir, name string, data []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // As above.
		return err
	}
	return atomicfile.Write(filepath.Join(dir, name), data, 0o644)
}
