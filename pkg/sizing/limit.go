package sizing

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Limit returns the memory limit of the process in bytes: the smaller of its container's limit and goMemoryLimit, which is GOMEMLIMIT as the Go runtime
// reports it. cgroups is the directory where control groups are mounted in a container, /sys/fs/cgroup. It returns false if there is no limit.
func Limit(cgroups string, goMemoryLimit int64) (int64, bool) {
	limit := goMemoryLimit
	for _, file := range []string{"memory.max", "memory/memory.limit_in_bytes"} { // cgroup v2 and v1
		text, err := os.ReadFile(filepath.Join(cgroups, file))
		if err != nil {
			continue
		}
		// Without a limit, the file has the word max, or in v1 the largest number of whole pages.
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
			limit = min(limit, n)
		}
	}
	return limit, limit > 0 && limit < math.MaxInt64>>1
}

// Soft returns the limit for the Go runtime, in bytes. It leaves a tenth of the container's limit for memory that the runtime does not count, such as
// the pages of the program.
func Soft(limit int64) int64 { return limit - limit/10 }
