// Informers of client-go on the flunders of one namespace, while somebody changes them. Each informer, of
// whole objects, of metadata, and of a selection, keeps a store; a second one is kept from what the event
// handlers are told. "check" on standard input asks whether both are what the server lists; the answer is
// printed once they are. WatchListClient and the inconsistency detector are chosen by client-go's own
// variables.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const patience = 90 * time.Second

var flunders = schema.GroupVersionResource{Group: "wardle.example.com", Version: "v1alpha1", Resource: "flunders"}

type byName map[string]any

func named(objects []any) byName {
	found := byName{}
	for _, object := range objects {
		if m, err := meta.Accessor(object); err == nil {
			found[m.GetName()] = object
		}
	}
	return found
}

type follower struct {
	name     string
	informer cache.SharedIndexInformer
	list     func(context.Context) (runtime.Object, error)

	lock   sync.Mutex
	told   byName
	faults []string
}

func (f *follower) follow() error {
	f.told = byName{}
	note := func(event string, object any, known bool) {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		m, err := meta.Accessor(object)
		if err != nil {
			f.faults = append(f.faults, err.Error())
			return
		}
		if _, present := f.told[m.GetName()]; present != known {
			f.faults = append(f.faults, fmt.Sprintf("%s of %s, known: %v", event, m.GetName(), present))
		}
		if event == "delete" {
			delete(f.told, m.GetName())
		} else {
			f.told[m.GetName()] = object
		}
	}
	_, err := f.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			f.lock.Lock()
			defer f.lock.Unlock()
			note("add", object, false)
		},
		UpdateFunc: func(_, object any) {
			f.lock.Lock()
			defer f.lock.Unlock()
			note("update", object, true)
		},
		DeleteFunc: func(object any) {
			f.lock.Lock()
			defer f.lock.Unlock()
			note("delete", object, true)
		},
	})
	return err
}

// What differs from the server, or "" and how many objects there are.
func (f *follower) compare(ctx context.Context) (string, int) {
	list, err := f.list(ctx)
	if err != nil {
		return err.Error(), 0
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return err.Error(), 0
	}
	var objects []any
	for _, item := range items {
		objects = append(objects, item)
	}
	served, kept := named(objects), named(f.informer.GetStore().List())
	f.lock.Lock()
	defer f.lock.Unlock()
	switch {
	case len(f.faults) > 0:
		return fmt.Sprintf("the handlers were told: %v", f.faults), 0
	case !reflect.DeepEqual(served, kept):
		return fmt.Sprintf("served %v\nkept   %v", served, kept), 0
	case !reflect.DeepEqual(served, f.told):
		return fmt.Sprintf("served %v\ntold   %v", served, f.told), 0
	}
	return "", len(served)
}

func run(namespace string) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	whole, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	partial, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	everything := func(*metav1.ListOptions) {}
	selected := func(options *metav1.ListOptions) { options.LabelSelector = "app=x" }
	ofWhole := func(name string, tweak func(*metav1.ListOptions)) *follower {
		factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(whole, 0, namespace, tweak)
		return &follower{name: name, informer: factory.ForResource(flunders).Informer(), list: func(ctx context.Context) (runtime.Object, error) {
			options := metav1.ListOptions{}
			tweak(&options)
			return whole.Resource(flunders).Namespace(namespace).List(ctx, options)
		}}
	}
	ofMetadata := func(name string, tweak func(*metav1.ListOptions)) *follower {
		factory := metadatainformer.NewFilteredSharedInformerFactory(partial, 0, namespace, tweak)
		return &follower{name: name, informer: factory.ForResource(flunders).Informer(), list: func(ctx context.Context) (runtime.Object, error) {
			options := metav1.ListOptions{}
			tweak(&options)
			return partial.Resource(flunders).Namespace(namespace).List(ctx, options)
		}}
	}
	followers := []*follower{
		ofWhole("whole", everything),
		ofWhole("whole, selected", selected),
		ofMetadata("metadata", everything),
		ofMetadata("metadata, selected", selected),
	}
	ctx := context.Background()
	for _, f := range followers {
		if err := f.follow(); err != nil {
			return err
		}
		go f.informer.RunWithContext(ctx)
	}
	starting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, f := range followers {
		if !cache.WaitForCacheSync(starting.Done(), f.informer.HasSynced) {
			return fmt.Errorf("%s: not synchronised", f.name)
		}
	}
	fmt.Println("synchronised")
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() && commands.Text() == "check" {
		var counts []string
		for _, f := range followers {
			difference, count := f.compare(ctx)
			for end := time.Now().Add(patience); difference != ""; difference, count = f.compare(ctx) {
				if time.Now().After(end) {
					return fmt.Errorf("%s: %s", f.name, difference)
				}
				time.Sleep(50 * time.Millisecond)
			}
			counts = append(counts, fmt.Sprint(count))
		}
		fmt.Println("same", strings.Join(counts, " "))
	}
	return commands.Err()
}

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
