// Collectives between pretended devices: gloo on the same memory, with NCCL's manners.
//
// A collective whose peer is gone waits until this rank's own abort(). abort() and
// shutdown() return once all ranks of the group have called the same, or after
// PRETEND_PATIENCE seconds. A communicator forms once all ranks are there, without a
// bound, and takes PRETEND_INIT seconds more. With PRETEND_WATCHDOG=1 a collective that
// exceeds its time-out, and a kernel that failed, end the process by SIGABRT; the latter
// not where TORCH_NCCL_RETHROW_CUDA_ERRORS is 0.
#include "pretend.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

#include <mutex>
#include <set>
#include <thread>

namespace pretend {

namespace {

using at::Tensor;
using Clock = std::chrono::steady_clock;
using Tensors = std::vector<Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using std::chrono::milliseconds;

double number(const char* variable, double otherwise) {
  const char* value = getenv(variable);
  return value ? atof(value) : otherwise;
}

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(seconds));
}

// Python's lock, let go of for the length of a block by a thread that holds it.
struct WithoutPython {
  std::optional<py::gil_scoped_release> released;
  WithoutPython() {
    if (Py_IsInitialized() && PyGILState_Check()) {
      released.emplace();
    }
  }
};

using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

// The collectives of one communicator that have not ended; abort() ends them, whatever
// gloo does: it may miss that a peer is gone, and wait on.
struct Communicator {
  std::mutex mutex;
  std::set<FuturePtr> waiting;
  bool aborted = false;

  bool is_aborted() {
    std::lock_guard<std::mutex> lock(mutex);
    return aborted;
  }
  void add(const FuturePtr& done, int rank) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (!aborted) {
        waiting.insert(done);
        return;
      }
    }
    fail(done, rank);
  }
  // Tell whether the caller is the one to end a collective.
  bool take(const FuturePtr& done) {
    std::lock_guard<std::mutex> lock(mutex);
    return waiting.erase(done) > 0;
  }
  void abort(int rank) {
    std::set<FuturePtr> ended;
    {
      std::lock_guard<std::mutex> lock(mutex);
      aborted = true;
      ended.swap(waiting);
    }
    for (auto& done : ended) {
      fail(done, rank);
    }
  }
  static void fail(const FuturePtr& done, int rank) {
    done->setError(std::make_exception_ptr(std::runtime_error(
        "NCCL communicator was aborted on rank " + std::to_string(rank))));
  }
};

void watch(c10::intrusive_ptr<c10::ivalue::Future> done, double seconds) {
  if (number("PRETEND_WATCHDOG", 0) == 0) {
    return;
  }
  std::thread([done, end = after(seconds)] {
    while (!done->completed()) {
      bool late = Clock::now() > end;
      if (late || (any_failed() && number("TORCH_NCCL_RETHROW_CUDA_ERRORS", 1) != 0)) {
        fprintf(stderr, "pretended watchdog: %s\n", late ? "time-out" : "device error");
        ::abort();
      }
      std::this_thread::sleep_for(milliseconds(50));
    }
  }).detach();
}

struct PretendedWork final : c10d::Work {
  c10::intrusive_ptr<c10::ivalue::Future> done;

  PretendedWork(
      const WorkPtr& real,
      const std::shared_ptr<Communicator>& communicator,
      int rank,
      const Tensors& result,
      double seconds)
      : c10d::Work(rank, c10d::OpType::ALLREDUCE),
        done(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()))) {
    // Tensors without Python objects: this thread may outlive Python.
    Tensors plain;
    for (auto& tensor : result) {
      plain.push_back(tensor.detach());
    }
    communicator->add(done, rank);
    std::thread([done = done, real, communicator, plain] {
      try {
        real->wait();
      } catch (...) { // a peer is gone: nobody on this host is told
        return;
      }
      if (communicator->take(done)) {
        done->markCompleted(c10::IValue(plain));
      }
    }).detach();
    watch(done, seconds);
  }
  bool isCompleted() override { return done->completed(); }
  bool isSuccess() const override { return done->completed() && !done->hasError(); }
  bool wait(milliseconds = kNoTimeout) override {
    WithoutPython here;
    done->wait();
    if (done->hasError()) {
      std::rethrow_exception(done->exception_ptr());
    }
    return true;
  }
  void synchronize() override { wait(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return done; }
};

// Wait until all ranks have come to the same point.
void together(c10d::Store& store, int size, const std::string& key, Clock::time_point end) {
  WithoutPython here;
  for (int by = 1; Clock::now() < end; by = 0) {
    try {
      if (store.add(key, by) >= size) {
        return;
      }
    } catch (...) { // the store is gone; the others cannot be heard of
      std::this_thread::sleep_until(end);
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
}

void form(const c10::intrusive_ptr<c10d::Store>& store, int size) {
  together(*store, size, "formed", Clock::time_point::max());
  WithoutPython here;
  std::this_thread::sleep_until(after(number("PRETEND_INIT", 0)));
}

struct Backend final : c10d::Backend {
  c10::intrusive_ptr<c10d::Backend> gloo;
  c10::intrusive_ptr<c10d::Store> store;
  double seconds;
  std::shared_ptr<Communicator> communicator = std::make_shared<Communicator>();
  bool aborted = false;
  bool shut = false;

  Backend(
      c10::intrusive_ptr<c10d::Backend> gloo,
      c10::intrusive_ptr<c10d::Store> store,
      int rank,
      int size,
      double seconds)
      : c10d::Backend(rank, size), gloo(gloo), store(store), seconds(seconds) {}

  const std::string getBackendName() const override { return "pretend"; }
  // gloo notes its collectives in torch's flight recorder, as NCCL does in its own.
  void setGroupUid(const std::string& uid) override {
    c10d::Backend::setGroupUid(uid);
    gloo->setGroupUid(uid);
  }
  void setTimeout(milliseconds timeout) override { seconds = timeout.count() / 1e3; }

  template <class Call>
  WorkPtr run(const Tensors& result, Call call) {
    TORCH_CHECK_WITH(
        DistBackendError,
        !communicator->is_aborted(),
        "NCCL communicator was aborted on rank ",
        getRank());
    return c10::make_intrusive<PretendedWork>(
        call(), communicator, getRank(), result, seconds);
  }
  Tensors memory_of(const Tensors& tensors) {
    Tensors found;
    for (auto& tensor : tensors) {
      touch(tensor.device().index());
      found.push_back(on_cpu(tensor));
    }
    return found;
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    auto memory = memory_of(tensors);
    return run(tensors, [&] { return gloo->allreduce(memory, options); });
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto memory = memory_of(tensors);
    return run(tensors, [&] { return gloo->broadcast(memory, options); });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    auto memory = memory_of(tensors);
    return run(tensors, [&] { return gloo->reduce(memory, options); });
  }
  WorkPtr allgather(
      std::vector<Tensors>& out, Tensors& in, const c10d::AllgatherOptions& options) override {
    std::vector<Tensors> into;
    for (auto& tensors : out) {
      into.push_back(memory_of(tensors));
    }
    auto from = memory_of(in);
    return run(out[0], [&] { return gloo->allgather(into, from, options); });
  }
  WorkPtr _allgather_base(
      Tensor& out, Tensor& in, const c10d::AllgatherOptions& options) override {
    auto into = memory_of({out})[0], from = memory_of({in})[0];
    return run({out}, [&] { return gloo->_allgather_base(into, from, options); });
  }
  WorkPtr _reduce_scatter_base(
      Tensor& out, Tensor& in, const c10d::ReduceScatterOptions& options) override {
    auto into = memory_of({out})[0], from = memory_of({in})[0];
    return run({out}, [&] { return gloo->_reduce_scatter_base(into, from, options); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return run({}, [&] { return gloo->barrier(options); });
  }

  void shutdown() override {
    if (!shut && !aborted) {
      shut = true;
      together(*store, getSize(), "shut", after(number("PRETEND_PATIENCE", 600)));
      gloo->shutdown();
    }
  }
  void abort() override {
    communicator->abort(getRank());
    if (!aborted) {
      aborted = true;
      together(*store, getSize(), "aborted", after(number("PRETEND_PATIENCE", 600)));
      gloo->shutdown();
    }
  }
};

} // namespace

void register_collectives(pybind11::module& m) {
  py::module::import("torch.distributed");
  py::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>>(m, "Backend")
      .def(py::init([](c10::intrusive_ptr<c10d::Backend> gloo,
                       c10::intrusive_ptr<c10d::Store> store,
                       int rank,
                       int size,
                       double seconds) {
        return c10::make_intrusive<Backend>(gloo, store, rank, size, seconds);
      }));
  m.def("form", &form);
}

} // namespace pretend
