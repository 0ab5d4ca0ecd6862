// A pretended accelerator on torch's PrivateUse1 key. Its memory is the CPU's, its kernels
// are the CPU's; what a test can ask for is kept per device: whether a context is open
// there, how many bytes lie there, and whether a kernel failed there.
#include "pretend.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace pretend {

namespace {

using at::Tensor;
using c10::IntArrayRef;

constexpr int kMost = 64;
thread_local c10::DeviceIndex current = 0;

struct Device {
  std::atomic<bool> context{false};
  std::atomic<bool> failed{false};
  std::atomic<int64_t> bytes{0};
};
Device devices[kMost];

struct Block {
  void* data;
  int device;
  size_t bytes;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  devices[block->device].bytes -= static_cast<int64_t>(block->bytes);
  free(block->data);
  delete block;
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    touch(current);
    auto* block = new Block{bytes ? malloc(bytes) : nullptr, current, bytes};
    devices[current].bytes += static_cast<int64_t>(bytes);
    return {block->data, block, &release, c10::Device(kType, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    memcpy(to, from, bytes);
  }
};
Allocator allocator;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kType;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return {kType, current}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = current;
    setDevice(device);
    return {kType, before};
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() >= 0 && device.index() < count(), "invalid device ordinal");
    current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return count(); }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getStream(device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    check(stream.device_index());
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override { check(device); }
  void synchronizeEvent(void*) const override {}
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag)
      const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return devices[device].context;
  }
  c10::DeviceIndex deviceCount() const override { return count(); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    Guard().setDevice({kType, device});
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return Guard().exchangeDevice({kType, device}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current : exchangeDevice(device);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetAllocator(c10::DeviceType::CPU);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static auto generator = at::detail::createCPUGenerator();
    return generator;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    auto data = allocator.allocate(bytes);
    memcpy(data.get(), impl->data(), std::min(bytes, impl->nbytes()));
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(bytes);
  }
};

c10::Device wanted(std::optional<at::Device> device) {
  return device && device->has_index() ? *device : c10::Device(kType, current);
}

Tensor empty(
    IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(wanted(device));
  c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(
      size, &allocator, keys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    IntArrayRef size,
    IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  c10::DeviceGuard guard(wanted(device));
  c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(
      size, stride, &allocator, keys, c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const Tensor& tensor) {
  check(tensor.device().index());
  return on_cpu(tensor).item();
}

Tensor strided_view(
    const Tensor& self, IntArrayRef size, IntArrayRef stride, std::optional<int64_t> offset) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(self.storage()), self.key_set(), self.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(
      size, stride, offset.value_or(self.storage_offset()));
  return view;
}

Tensor view(const Tensor& self, IntArrayRef size) {
  auto sizes = at::infer_size(size, self.numel());
  auto strides = at::detail::computeStride(self.sizes(), self.strides(), sizes);
  TORCH_CHECK(strides.has_value(), "this tensor cannot be viewed so");
  return strided_view(self, sizes, *strides, self.storage_offset());
}

Tensor reshape_alias(const Tensor& self, IntArrayRef size, IntArrayRef stride) {
  return strided_view(self, size, stride, self.storage_offset());
}

const Tensor& resize(
    const Tensor& self, IntArrayRef size, std::optional<at::MemoryFormat>) {
  size_t bytes = c10::multiply_integers(size) * self.itemsize();
  if (self.storage().nbytes() < bytes) {
    Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

Tensor& set_storage(
    Tensor& self, at::Storage storage, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  auto usual = at::detail::defaultStrides(size);
  impl->set_sizes_and_strides(
      size, stride.size() == size.size() ? stride : IntArrayRef(usual), offset);
  return self;
}

// A product that would take a CPU long is not worked out.
Tensor mm(const Tensor& a, const Tensor& b) {
  constexpr int64_t kLong = 2048;
  if (a.size(0) > kLong) {
    return at::empty({a.size(0), b.size(1)}, a.options());
  }
  return at::mm(on_cpu(a), on_cpu(b)).to(a.device());
}

Tensor convolution(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    IntArrayRef stride,
    IntArrayRef padding,
    IntArrayRef dilation,
    bool transposed,
    IntArrayRef output_padding,
    int64_t groups) {
  auto bias_here = bias ? std::optional<Tensor>(on_cpu(*bias)) : std::nullopt;
  auto output = at::convolution(
      on_cpu(input), on_cpu(weight), bias_here, stride, padding, dilation, transposed,
      output_padding, groups);
  return output.to(input.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient,
    const Tensor& input,
    const Tensor& weight,
    IntArrayRef stride,
    IntArrayRef padding,
    IntArrayRef dilation,
    bool transposed,
    IntArrayRef output_padding,
    int64_t groups,
    std::array<bool, 3> mask) {
  int64_t channels[] = {gradient.size(1)};
  auto [of_input, of_weight, of_bias] = at::convolution_backward(
      on_cpu(gradient), on_cpu(input), on_cpu(weight), IntArrayRef(channels), stride,
      padding, dilation, transposed, output_padding, groups, mask);
  auto there = [&](const Tensor& t) { return t.defined() ? t.to(input.device()) : t; };
  return {there(of_input), there(of_weight), there(of_bias)};
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("as_strided", &strided_view);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("mm", &mm);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

} // namespace

int count() {
  const char* wanted = getenv("PRETEND_DEVICES");
  return wanted ? atoi(wanted) : 4;
}

void touch(int device) { devices[device].context = true; }

void check(int device) {
  TORCH_CHECK(!devices[device].failed, "PRETEND error: device-side assert triggered");
}

bool any_failed() {
  return std::any_of(devices, devices + kMost, [](auto& d) { return d.failed.load(); });
}

Tensor on_cpu(const Tensor& tensor) {
  if (tensor.device().is_cpu()) {
    return tensor;
  }
  auto* data = static_cast<char*>(tensor.storage().mutable_data());
  if (data != nullptr) {
    data += tensor.storage_offset() * tensor.itemsize();
  }
  auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  return at::from_blob(data, tensor.sizes(), tensor.strides(), [tensor](void*) {}, options);
}

} // namespace pretend

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace pretend;
  static Hooks hooks;
  c10::SetAllocator(kType, &allocator);
  at::RegisterPrivateUse1HooksInterface(&hooks);
  m.def("count", &count);
  m.def("current", [] { return static_cast<int>(current); });
  m.def("set_current", [](int device) {
    Guard().setDevice({kType, static_cast<c10::DeviceIndex>(device)});
  });
  m.def("synchronize", &check);
  m.def("has_context", [](int device) { return devices[device].context.load(); });
  m.def("bytes", [](int device) { return devices[device].bytes.load(); });
  m.def("fail_kernel", [](int device) { devices[device].failed = true; });
  register_collectives(m);
}
