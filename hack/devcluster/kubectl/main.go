// The kubectl command on the module that holds all of it; the main package of upstream is in k8s.io/kubernetes,
// which would have to be downloaded a second time.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
)

func main() {
	if cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()) != nil {
		os.Exit(1)
	}
}
