// A Go program as drivers and operators are: typed clients that send protobuf, informers that start with
// a streaming list, leader election, server-side apply of a status, dynamic and metadata-only clients.
//
// Each step prints one line "ok STEP" or "FAIL STEP: why"; the exit status is 1 if any failed.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	resourcev1apply "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
)

const namespace = "client-go"

// seen remembers what went over the wire.
type seen struct {
	mu       sync.Mutex
	requests []string
	inner    http.RoundTripper
}

func (s *seen) RoundTrip(request *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.requests = append(s.requests, request.Method+" "+request.URL.RequestURI()+" "+request.Header.Get("Content-Type"))
	s.mu.Unlock()
	return s.inner.RoundTrip(request)
}

func (s *seen) count(parts ...string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := 0
next:
	for _, request := range s.requests {
		for _, part := range parts {
			if !strings.Contains(request, part) {
				continue next
			}
		}
		found++
	}
	return found
}

type suite struct {
	config *rest.Config
	client kubernetes.Interface
	wire   *seen
}

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		fmt.Println("FAIL kubeconfig:", err)
		os.Exit(1)
	}
	config.QPS = -1
	wire := &seen{}
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper {
		wire.inner = inner
		return wire
	})
	s := &suite{config: config, client: kubernetes.NewForConfigOrDie(config), wire: wire}
	steps := []struct {
		name string
		run  func(context.Context) error
	}{
		{"typed protobuf writes", s.typed},
		{"errors", s.errors},
		{"informers start with a streaming list", s.informers},
		{"informers of older versions convert every frame", s.olderVersions},
		{"ApplyStatus of a claim", s.applyStatus},
		{"apply and extract", s.applyExtract},
		{"leader election hands over", s.election},
		{"event recorder", s.recorder},
		{"subresources: binding, status, eviction", s.subresources},
		{"dynamic client and custom resources", s.dynamic},
		{"metadata informer", s.metadata},
	}
	failed := false
	for _, step := range steps {
		ctx, cancel := context.WithTimeout(context.Background(), 120*time.Second)
		if err := step.run(ctx); err != nil {
			fmt.Printf("FAIL %s: %v\n", step.name, err)
			failed = true
		} else {
			fmt.Printf("ok %s\n", step.name)
		}
		cancel()
	}
	if failed {
		os.Exit(1)
	}
}

func eventually(ctx context.Context, what string, check func() bool) error {
	for !check() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("never: %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func claim(name string) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"made": "here"}},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name:    "r",
			Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "class.example.com"},
		}}}},
	}
}

func (s *suite) typed(ctx context.Context) error {
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := s.client.CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{}); err != nil {
		return err
	}
	zero, size := int64(0), resource.MustParse("80Gi")
	no := false
	slice := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "slice"},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: "driver.example.com", NodeName: ptr("node"),
			Pool: resourcev1.ResourcePool{Name: "node", ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{
				Name: "d",
				Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
					"zero": {IntValue: &zero}, "no": {BoolValue: &no}, "driverVersion": {VersionValue: ptr("1.2.3")},
				},
				Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: size}},
			}},
		},
	}
	slices := s.client.ResourceV1().ResourceSlices()
	made, err := slices.Create(ctx, slice, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	device := made.Spec.Devices[0]
	if v := device.Attributes["zero"].IntValue; v == nil || *v != 0 {
		return errors.New("an integer attribute 0 did not survive")
	}
	if v := device.Attributes["no"].BoolValue; v == nil || *v {
		return errors.New("a boolean attribute false did not survive")
	}
	if v := device.Capacity["memory"].Value; v.Cmp(size) != 0 {
		return fmt.Errorf("capacity came back as %s", v.String())
	}
	made.Spec.Pool.Generation = 1
	updated, err := slices.Update(ctx, made, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	if updated.Generation != 2 || updated.ResourceVersion == made.ResourceVersion {
		return fmt.Errorf("generation %d, revision %s after %s", updated.Generation, updated.ResourceVersion, made.ResourceVersion)
	}
	if _, err := slices.Update(ctx, made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		return fmt.Errorf("a stale update: %v", err)
	}
	uid := updated.UID
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	if err := slices.Delete(ctx, "slice", options); err != nil {
		return err
	}
	if s.wire.count("POST /apis/resource.k8s.io/v1/resourceslices", "application/vnd.kubernetes.protobuf") != 1 {
		return errors.New("the create was not sent as protobuf")
	}
	if s.wire.count("DELETE /apis/resource.k8s.io/v1/resourceslices/slice", "protobuf") != 1 {
		return errors.New("the options of the delete were not sent as protobuf")
	}
	return nil
}

func (s *suite) errors(ctx context.Context) error {
	claims := s.client.ResourceV1().ResourceClaims(namespace)
	if _, err := claims.Get(ctx, "nope", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return fmt.Errorf("get of nothing: %v", err)
	}
	bad := claim("Bad_Name")
	_, err := claims.Create(ctx, bad, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !apierrors.HasStatusCause(err, metav1.CauseTypeFieldValueInvalid) {
		return fmt.Errorf("create of a bad name: %v", err)
	}
	if _, err := claims.List(ctx, metav1.ListOptions{ResourceVersion: "1", ResourceVersionMatch: "Wrong"}); !apierrors.IsInvalid(err) {
		return fmt.Errorf("a wrong resourceVersionMatch: %v", err)
	}
	if _, err := claims.List(ctx, metav1.ListOptions{FieldSelector: "spec.wrong=1"}); !apierrors.IsBadRequest(err) {
		return fmt.Errorf("a wrong field selector: %v", err)
	}
	watch, err := claims.Watch(ctx, metav1.ListOptions{ResourceVersion: "99999999"})
	if err == nil {
		watch.Stop()
	}
	_, err = s.client.CoreV1().ConfigMaps("nowhere").Create(
		ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("create in no namespace: %v", err)
	}
	return nil
}

func (s *suite) informers(ctx context.Context) error {
	claims := s.client.ResourceV1().ResourceClaims(namespace)
	for i := range 3 {
		if _, err := claims.Create(ctx, claim(fmt.Sprintf("informed-%d", i)), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	factory := informers.NewSharedInformerFactory(s.client, 0)
	informer := factory.Resource().V1().ResourceClaims().Informer()
	var mu sync.Mutex
	got := map[string]int{}
	note := func(event string) {
		mu.Lock()
		got[event]++
		mu.Unlock()
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { note("add") },
		UpdateFunc: func(_, _ any) { note("update") },
		DeleteFunc: func(any) { note("delete") },
	})
	if err != nil {
		return err
	}
	factory.Resource().V1().DeviceClasses().Informer()
	factory.Resource().V1().ResourceSlices().Informer()
	factory.Core().V1().Pods().Informer()
	factory.Core().V1().Nodes().Informer()
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("%s never synced", kind)
		}
	}
	lister := factory.Resource().V1().ResourceClaims().Lister().ResourceClaims(namespace)
	if _, err := lister.Get("informed-1"); err != nil {
		return err
	}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		current, err := claims.Get(ctx, "informed-1", metav1.GetOptions{})
		if err != nil {
			return err
		}
		current.Labels["changed"] = "yes"
		_, err = claims.Update(ctx, current, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	if err := claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "changed=yes"}); err != nil {
		return err
	}
	err = eventually(ctx, "three added, one changed, one deleted", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return got["add"] == 3 && got["update"] >= 1 && got["delete"] == 1
	})
	if err != nil {
		return err
	}
	if s.wire.count("GET /apis/resource.k8s.io/v1/resourceclaims?", "sendInitialEvents=true", "watch=true") != 1 {
		return errors.New("the informer did not start with a streaming list")
	}
	if s.wire.count("GET /apis/resource.k8s.io/v1/resourceclaims?limit") != 0 {
		return errors.New("the informer fell back to a list")
	}
	return nil
}

func (s *suite) olderVersions(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithNamespace(namespace))
	beta1 := factory.Resource().V1beta1().ResourceClaims()
	beta2 := factory.Resource().V1beta2().ResourceClaims()
	beta1.Informer()
	beta2.Informer()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	check := func(name string) error {
		return eventually(ctx, name+" in both versions", func() bool {
			one, err := beta1.Lister().ResourceClaims(namespace).Get(name)
			if err != nil || len(one.Spec.Devices.Requests) != 1 || one.Spec.Devices.Requests[0].DeviceClassName != "class.example.com" {
				return false
			}
			two, err := beta2.Lister().ResourceClaims(namespace).Get(name)
			return err == nil && two.Spec.Devices.Requests[0].Exactly != nil && two.ResourceVersion == one.ResourceVersion
		})
	}
	if err := check("informed-0"); err != nil {
		return err
	}
	if _, err := s.client.ResourceV1().ResourceClaims(namespace).Create(ctx, claim("later"), metav1.CreateOptions{}); err != nil {
		return err
	}
	return check("later")
}

func (s *suite) applyStatus(ctx context.Context) error {
	claims := s.client.ResourceV1().ResourceClaims(namespace)
	made, err := claims.Create(ctx, claim("allocated"), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
		Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "r", Driver: "driver.example.com", Pool: "node", Device: "d"},
		},
	}}
	if _, err := claims.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	applied := func(address string) *resourcev1apply.ResourceClaimApplyConfiguration {
		network := resourcev1apply.NetworkDeviceData().WithInterfaceName("eth1").WithIPs(address)
		device := resourcev1apply.AllocatedDeviceStatus().
			WithDriver("driver.example.com").WithPool("node").WithDevice("d").WithNetworkData(network)
		status := resourcev1apply.ResourceClaimStatus().WithDevices(device)
		return resourcev1apply.ResourceClaim("allocated", namespace).WithStatus(status)
	}
	driver := metav1.ApplyOptions{FieldManager: "driver", Force: true}
	got, err := claims.ApplyStatus(ctx, applied("10.0.0.1/24"), driver)
	if err != nil {
		return err
	}
	if len(got.Status.Devices) != 1 || got.Status.Devices[0].NetworkData.IPs[0] != "10.0.0.1/24" || got.Status.Allocation == nil {
		return fmt.Errorf("status after apply: %+v", got.Status)
	}
	again, err := claims.ApplyStatus(ctx, applied("10.0.0.1/24"), driver)
	if err != nil {
		return err
	}
	if again.ResourceVersion != got.ResourceVersion {
		return errors.New("applying the same status wrote the object")
	}
	_, err = claims.ApplyStatus(ctx, applied("10.0.0.2/24"), metav1.ApplyOptions{FieldManager: "other"})
	if !apierrors.IsConflict(err) || !apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict) {
		return fmt.Errorf("apply by another manager: %v", err)
	}
	if !strings.Contains(err.Error(), `.status.devices[device="d",driver="driver.example.com",pool="node"]`) {
		return fmt.Errorf("the conflict does not name the device: %v", err)
	}
	extracted, err := resourcev1apply.ExtractResourceClaimStatus(again, "driver")
	if err != nil {
		return err
	}
	if extracted.Status == nil || len(extracted.Status.Devices) != 1 || extracted.Status.Allocation != nil {
		return fmt.Errorf("extracted: %+v", extracted.Status)
	}
	empty := resourcev1apply.ResourceClaim("allocated", namespace).WithStatus(resourcev1apply.ResourceClaimStatus())
	gone, err := claims.ApplyStatus(ctx, empty, driver)
	if err != nil {
		return err
	}
	if len(gone.Status.Devices) != 0 || gone.Status.Allocation == nil {
		return fmt.Errorf("status after giving the devices up: %+v", gone.Status)
	}
	return nil
}

func (s *suite) applyExtract(ctx context.Context) error {
	maps := s.client.CoreV1().ConfigMaps(namespace)
	mine := metav1.ApplyOptions{FieldManager: "mine"}
	config := corev1apply.ConfigMap("applied", namespace).WithData(map[string]string{"a": "1", "b": "2"})
	first, err := maps.Apply(ctx, config, mine)
	if err != nil {
		return err
	}
	extracted, err := corev1apply.ExtractConfigMap(first, "mine")
	if err != nil {
		return err
	}
	delete(extracted.Data, "b")
	second, err := maps.Apply(ctx, extracted, mine)
	if err != nil {
		return err
	}
	if len(second.Data) != 1 {
		return fmt.Errorf("data after giving up b: %v", second.Data)
	}
	return nil
}

func (s *suite) election(ctx context.Context) error {
	lead := func(ctx context.Context, identity string, led chan<- string) {
		lock := &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: "leader", Namespace: namespace},
			Client:     s.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		}
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: lock, ReleaseOnCancel: true,
			LeaseDuration: 60 * time.Second, RenewDeadline: 40 * time.Second, RetryPeriod: 200 * time.Millisecond,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { led <- identity },
				OnStoppedLeading: func() {},
			},
		})
	}
	led := make(chan string, 2)
	firstCtx, stopFirst := context.WithCancel(ctx)
	secondCtx, stopSecond := context.WithCancel(ctx)
	defer stopFirst()
	defer stopSecond()
	done := make(chan struct{})
	go func() { lead(firstCtx, "first", led); close(done) }()
	wait := func(want string) error {
		select {
		case got := <-led:
			if got != want {
				return fmt.Errorf("%s leads instead of %s", got, want)
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%s never led", want)
		}
	}
	if err := wait("first"); err != nil {
		return err
	}
	go lead(secondCtx, "second", led)
	select {
	case got := <-led:
		return fmt.Errorf("%s leads as well", got)
	case <-time.After(time.Second):
	}
	stopFirst()
	<-done
	return wait("second")
}

func (s *suite) recorder(ctx context.Context) error {
	object, err := s.client.ResourceV1().ResourceClaims(namespace).Get(ctx, "allocated", metav1.GetOptions{})
	if err != nil {
		return err
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: s.client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return err
	}
	defer broadcaster.Shutdown()
	recorder := broadcaster.NewRecorder(scheme.Scheme, "drakkar.dev/test")
	recorder.Eventf(object, nil, corev1.EventTypeNormal, "Tried", "Trying", "it was tried")
	return eventually(ctx, "an event in the core group", func() bool {
		found, err := s.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.name=allocated,reason=Tried",
		})
		return err == nil && len(found.Items) == 1 && found.Items[0].Message == "it was tried"
	})
}

func (s *suite) subresources(ctx context.Context) error {
	pods := s.client.CoreV1().Pods(namespace)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}, SchedulerName: "nobody"},
	}
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "pod"}, Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}
	if err := pods.Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("binding: %w", err)
	}
	patch := []byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
	if _, err := pods.Patch(ctx, "pod", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	now := int64(0)
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Name: "pod", Namespace: namespace},
		DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: &now},
	}
	if err := pods.EvictV1(ctx, eviction); err != nil {
		return fmt.Errorf("eviction: %w", err)
	}
	if err := eventually(ctx, "the evicted pod is gone", func() bool {
		_, err := pods.Get(ctx, "pod", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}); err != nil {
		return err
	}
	return nil
}

func (s *suite) dynamic(ctx context.Context) error {
	client := dynamic.NewForConfigOrDie(s.config)
	object := func(text map[string]any) *unstructured.Unstructured { return &unstructured.Unstructured{Object: text} }
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	definition := object(map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "gadgets.go.example.com"},
		"spec": map[string]any{
			"group": "go.example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": "gadgets", "singular": "gadget", "kind": "Gadget"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object",
					"properties": map[string]any{
						"spec":   map[string]any{"type": "object", "properties": map[string]any{"size": map[string]any{"type": "integer", "default": int64(7)}}},
						"status": map[string]any{"type": "object", "properties": map[string]any{"ready": map[string]any{"type": "boolean"}}},
					},
				}},
			}},
		},
	})
	if _, err := client.Resource(definitions).Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		return err
	}
	gadgets := client.Resource(schema.GroupVersionResource{Group: "go.example.com", Version: "v1", Resource: "gadgets"}).Namespace(namespace)
	gadget := object(map[string]any{
		"apiVersion": "go.example.com/v1", "kind": "Gadget",
		"metadata": map[string]any{"name": "g"}, "spec": map[string]any{},
	})
	made, err := gadgets.Create(ctx, gadget, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if size, _, _ := unstructured.NestedInt64(made.Object, "spec", "size"); size != 7 {
		return fmt.Errorf("the default of the schema is missing: %v", made.Object)
	}
	if err := unstructured.SetNestedField(made.Object, true, "status", "ready"); err != nil {
		return err
	}
	if _, err := gadgets.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	applied := object(map[string]any{
		"apiVersion": "go.example.com/v1", "kind": "Gadget",
		"metadata": map[string]any{"name": "g"}, "spec": map[string]any{"size": int64(9)},
	})
	got, err := gadgets.Apply(ctx, "g", applied, metav1.ApplyOptions{FieldManager: "go", Force: true})
	if err != nil {
		return err
	}
	if ready, _, _ := unstructured.NestedBool(got.Object, "status", "ready"); !ready {
		return fmt.Errorf("the status got lost: %v", got.Object)
	}
	return gadgets.Delete(ctx, "g", metav1.DeleteOptions{})
}

func (s *suite) metadata(ctx context.Context) error {
	client := metadata.NewForConfigOrDie(metadata.ConfigFor(s.config))
	factory := metadatainformer.NewFilteredSharedInformerFactory(client, 0, namespace, nil)
	claims := factory.ForResource(schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"})
	claims.Informer()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	found, err := claims.Lister().ByNamespace(namespace).Get("allocated")
	if err != nil {
		return err
	}
	partial, ok := found.(*metav1.PartialObjectMetadata)
	if !ok || partial.Labels["made"] != "here" {
		return fmt.Errorf("found %T %v", found, found)
	}
	return nil
}

func ptr[T any](value T) *T { return &value }
