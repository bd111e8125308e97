package node

import (
	"errors"
	"fmt"
	"io"

	"karve.sh/karve/pkg/node/gpu"
)

// Check opens the driver and reads the memory of each GPU. It returns an error if the driver does not work.
func Check(library gpu.Library, out io.Writer) (err error) {
	driver, err := library.Init()
	if err != nil {
		return fmt.Errorf("opening NVIDIA's driver: %w", err)
	}
	defer func() { err = errors.Join(err, library.Shutdown()) }()
	devices, err := library.Devices()
	if err != nil {
		return fmt.Errorf("listing the GPUs: %w", err)
	}
	if len(devices) == 0 {
		return errors.New("there is no GPU: the container was given none, or the driver sees none")
	}
	for _, d := range devices {
		usage, err := library.Usage(d.UUID)
		if err != nil {
			return fmt.Errorf("reading %s (%s): %w", d.UUID, d.Product, err)
		}
		fmt.Fprintf(out, "%s (%s), driver %s, %d of %d MiB free\n", d.UUID, d.Product, driver.Version, usage.MemoryFreeMiB, d.MemoryMiB)
	}
	return nil
}
