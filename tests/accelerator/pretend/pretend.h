#pragma once
#include <torch/extension.h>

namespace pretend {

constexpr auto kType = c10::DeviceType::PrivateUse1;

// How many devices there are.
int count();
// Open a context on a device.
void touch(int device);
// Throw what a kernel of this device failed with, as a synchronisation does.
void check(int device);
// Whether a kernel of any device has failed.
bool any_failed();
// The same memory as a tensor of the CPU's.
at::Tensor on_cpu(const at::Tensor& tensor);

void register_collectives(pybind11::module& m);

} // namespace pretend
