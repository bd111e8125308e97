package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/atomicfile"
	"karve.sh/karve/pkg/node/limited"
	"karve.sh/karve/pkg/nodecontract"
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

// checkpoint is the content of the file with the prepared claims.
type checkpoint struct {
	Version int     `json:"version"`
	Claims  []Claim `json:"claims"`
}

const (
	checkpointFile    = "dra-claims.json"
	checkpointVersion = 1
	maxCheckpoint     = 16 << 20
)

// ErrUnreadable means that the checkpoint cannot be read.
var ErrUnreadable = errors.New("the record of prepared ResourceClaims cannot be read")

// validUID matches the UIDs of claims, which are used in file names.
var validUID = regexp.MustCompile(`^[0-9A-Za-z][-0-9A-Za-z]{0,127}$`)

// readCheckpoint returns the claims in a directory's checkpoint. It returns none if there is no file.
func readCheckpoint(dir string) (map[string]Claim, error) {
	path := filepath.Join(dir, checkpointFile)
	claims := map[string]Claim{}
	data, err := limited.ReadFile(path, maxCheckpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return claims, nil
	}
	var c checkpoint
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err == nil && c.Version != checkpointVersion {
		err = fmt.Errorf("its version is %d, and this agent knows %d", c.Version, checkpointVersion)
	}
	for _, claim := range c.Claims {
		if err == nil && !validUID.MatchString(claim.UID) {
			err = fmt.Errorf("a claim has the UID %.64q", claim.UID)
		}
		claims[claim.UID] = claim
	}
	if err != nil {
		return map[string]Claim{}, fmt.Errorf("%s: %w: %w", path, ErrUnreadable, err)
	}
	return claims, nil
}

// Recorded returns a function that looks up, in a directory's checkpoint, the replicas that a share of a claim holds. A checkpoint that cannot be read
// counts as empty: the agent will write it again.
func Recorded(dir string) func(driver, namespace, name, device, shareID string) []string {
	claims, err := readCheckpoint(dir)
	if err != nil {
		claims = nil
	}
	return func(driver, namespace, name, device, shareID string) []string {
		if driver != nodecontract.DRADriver {
			return nil
		}
		return idsIn(claims, namespace, name, device, shareID, func(string) bool { return true })
	}
}

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

// writeCheckpoint atomically replaces the checkpoint.
func writeCheckpoint(dir string, claims map[string]Claim) error {
	c := checkpoint{Version: checkpointVersion, Claims: []Claim{}}
	for _, claim := range claims {
		c.Claims = append(c.Claims, claim)
	}
	slices.SortFunc(c.Claims, func(a, b Claim) int { return strings.Compare(a.UID, b.UID) })
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return writeFile(dir, checkpointFile, data)
}

// writeFile atomically replaces a file in a directory, which it creates if necessary. The container runtime must be able to read CDI specs.
func writeFile(dir, name string, data []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // As above.
		return err
	}
	return atomicfile.Write(filepath.Join(dir, name), data, 0o644)
}
