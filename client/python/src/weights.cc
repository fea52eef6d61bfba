#include "client/python/src/weights.h"

#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/gpu/cuda_device.h"
#include "client/gpu/object_source.h"
#include "client/gpu/weight_stream.h"
#include "client/python/src/call.h"
#include "client/python/src/devices.h"
#include "client/python/src/memory.h"
#include "common/safetensors.h"

namespace cairn::python {
namespace {

using client::Plan;
using client::Selection;
using client::Shard;
using client::Slice;
using client::WantedTensor;
using gpu::Streamer;
using gpu::StreamOptions;
using gpu::WeightStream;

Selection SelectionArgument(const std::vector<std::string>& names, const py::sequence& cuts) {
  Selection selection{names, {}};
  for (const py::handle item : cuts) {
    // (pattern, "shard", rank, of, dim) or (pattern, "slice", begin, end, dim)
    const auto cut = py::cast<py::tuple>(item);
    const auto pattern = cut[0].cast<std::string>();
    const auto first = cut[2].cast<uint64_t>(), second = cut[3].cast<uint64_t>();
    const int dim = cut[4].cast<int>();
    if (cut[1].cast<std::string>() == "shard") {
      selection.cuts.push_back({pattern, Shard{first, second, dim}});
    } else {
      selection.cuts.push_back({pattern, Slice{dim, first, second}});
    }
  }
  return selection;
}

StreamOptions::Check CheckArgument(const std::string& check) {
  using Check = StreamOptions::Check;
  if (check == "auto") return Check::kAuto;
  if (check == "device") return Check::kDevice;
  if (check == "host") return Check::kHost;
  if (check == "none") return Check::kNone;
  throw py::value_error("check: \"" + check + "\" is none of auto, device, host, none");
}

// What Python keeps, and whose end may wait for the device or for threads: that does not hold the GIL.
template <typename T>
std::shared_ptr<T> WithoutGil(std::unique_ptr<T> kept) {
  return std::shared_ptr<T>(kept.release(), [](T* ending) {
    if (PyGILState_Check() == 0) {
      delete ending;
      return;
    }
    const py::gil_scoped_release released;
    delete ending;
  });
}
template <typename T>
std::shared_ptr<T> WithoutGil(T kept) {
  return WithoutGil(std::make_unique<T>(std::move(kept)));
}

// A stream, and the weights it reads. A second thread is refused, but for Close.
class PyStream {
 public:
  PyStream(const PyWeights& weights, int device, const std::vector<std::string>& names,
           const py::sequence& cuts, const py::object& place, std::optional<uintptr_t> caller,
           bool views, uint64_t bucket_bytes, std::optional<size_t> ahead, size_t threads,
           const std::string& check, bool ring)
      : on_host_(device == kHostDevice), place_(place) {
    const Selection selection = SelectionArgument(names, cuts);
    StreamOptions options;
    if (!place_.is_none()) {
      options.place = [this](const WantedTensor& tensor) { return Place(tensor); };
    }
    if (caller.has_value()) options.caller = gpu::StreamId{*caller};
    options.views = views;
    options.bucket_bytes = bucket_bytes;
    options.ahead = ahead.value_or(options.ahead);
    options.threads = threads;
    options.check = CheckArgument(check);
    if (ring) options.way = StreamOptions::Way::kRing;
    const client::Weights& of = weights.get();
    Guarded([&]() -> Status {
      CAIRN_ASSIGN_OR_RETURN(Streamer* const streamer, StreamerOf(device));
      CAIRN_ASSIGN_OR_RETURN(Plan plan, client::MakePlan(of.index(), selection));
      // Of what is wanted; leases and descriptors of other objects go with the weights.
      std::vector<std::shared_ptr<gpu::Source>> sources(of.objects().size());
      for (const client::PlannedBlock& block : plan.blocks) {
        std::shared_ptr<gpu::Source>& source = sources[block.object];
        if (source != nullptr) continue;
        source = std::make_shared<gpu::ObjectSource>(of.objects()[block.object]);
      }
      CAIRN_ASSIGN_OR_RETURN(
          std::unique_ptr<WeightStream> stream,
          streamer->Start(std::move(sources), std::move(plan), std::move(options)));
      stream_ = WithoutGil(std::move(stream));
      return absl::OkStatus();
    });
  }
  PyStream(const PyStream&) = delete;
  PyStream& operator=(const PyStream&) = delete;
  ~PyStream() { Close(); }

  // A list of (name, dtype, shape, bytes, address, Region or None); empty at the end.
  py::list Next() {
    // Held here, since Close may come from another thread while this one is without the GIL.
    const std::shared_ptr<WeightStream> stream = stream_;
    if (stream == nullptr) Raise(absl::FailedPreconditionError("this stream has been closed"));
    if (std::exchange(in_use_, true)) {
      Raise(absl::FailedPreconditionError("another thread takes from this stream"));
    }
    const Used used{&in_use_};
    std::vector<WeightStream::Tensor> tensors;
    Guarded([&]() -> Status {
      CAIRN_ASSIGN_OR_RETURN(tensors, stream->Next());
      return absl::OkStatus();
    });
    py::list bucket;
    for (WeightStream::Tensor& tensor : tensors) {
      const WantedTensor& wanted = *tensor.wanted;
      py::object region = py::none();
      if (tensor.owned.valid()) {
        region = RegionOf(WithoutGil(std::move(tensor.owned)), tensor.data, wanted.bytes);
      } else if (tensor.buffer != nullptr) {
        region = RegionOf(WithoutGil(std::move(tensor.buffer)), tensor.data, wanted.bytes);
      }
      bucket.append(py::make_tuple(wanted.name, wanted.dtype, py::tuple(py::cast(wanted.shape)),
                                   wanted.bytes, tensor.data, region));
    }
    return bucket;
  }

  py::dict Stats() const {
    py::dict d;
    if (stream_ == nullptr) return d;
    const gpu::StreamStats stats = stream_->stats();
    d["bytes"] = stats.bytes;
    d["blocks"] = stats.blocks;
    d["checked_on_device"] = stats.checked_on_device;
    d["checked_on_host"] = stats.checked_on_host;
    d["checked_before"] = stats.checked_before;
    d["read_again"] = stats.read_again;
    d["direct"] = stats.direct;
    d["standing"] = stats.standing;
    d["ring"] = stats.ring;
    d["way"] = stats.way;
    d["standing_because"] = stats.standing_because;
    d["buckets"] = stats.buckets;
    d["threads"] = stats.threads;
    d["host_because"] = stats.host_because;
    return d;
  }

  void Close() {
    std::shared_ptr<WeightStream> stream = std::exchange(stream_, nullptr);
    if (stream == nullptr) return;
    const py::gil_scoped_release released;  // waits for threads, and ends leases
    stream->Stop();
    stream.reset();
  }

 private:
  struct Used {
    bool* in_use;
    ~Used() { *in_use = false; }
  };

  // Keeps memory for as long as Python has a use for it; on a GPU its bytes are not this process's to read.
  py::object RegionOf(std::shared_ptr<void> owner, gpu::DevicePtr at, uint64_t bytes) const {
    char* const data = on_host_ ? reinterpret_cast<char*>(at) : nullptr;
    return py::cast(Region{std::move(owner), data, on_host_ ? bytes : 0});
  }

  // Runs without the GIL. What Python raised within `place` is what is raised.
  template <typename Work>
  void Guarded(Work&& work) {
    Status status;
    {
      const py::gil_scoped_release released;
      status = work();
    }
    if (raised_.has_value()) {
      py::error_already_set raised = *std::move(raised_);
      raised_.reset();
      throw raised;
    }
    if (!status.ok()) Raise(status);
  }

  StatusOr<gpu::DevicePtr> Place(const WantedTensor& tensor) {
    const py::gil_scoped_acquire held;
    try {
      return place_(tensor.name, tensor.dtype, py::tuple(py::cast(tensor.shape)))
          .cast<gpu::DevicePtr>();
    } catch (py::error_already_set& error) {
      raised_.emplace(std::move(error));
      return absl::AbortedError("no memory was given");
    } catch (const std::exception& error) {
      return absl::InvalidArgumentError(error.what());
    }
  }

  const bool on_host_;
  py::object place_;
  std::optional<py::error_already_set> raised_;
  bool in_use_ = false;  // by a thread within Next; guarded by the GIL
  std::shared_ptr<WeightStream> stream_;
};

std::vector<TensorEntry> EntriesArgument(const py::sequence& entries) {
  std::vector<TensorEntry> tensors;
  for (const py::handle item : entries) {
    const auto entry = py::cast<py::tuple>(item);
    tensors.push_back({entry[0].cast<std::string>(), entry[1].cast<std::string>(),
                       entry[2].cast<std::vector<uint64_t>>()});
  }
  return tensors;
}

// (header as bytes, the order of the tensors behind it) for (name, dtype, shape) each.
py::tuple SafetensorsHead(const py::sequence& entries,
                          const std::map<std::string, std::string>& metadata) {
  const std::vector<TensorEntry> given = EntriesArgument(entries);
  const std::vector<size_t> order = client::StorageOrder(given);
  std::vector<TensorEntry> ordered;
  for (size_t i : order) ordered.push_back(given[i]);
  const std::string head = Call([&] { return EncodeSafetensorsHeader(ordered, metadata); });
  return py::make_tuple(py::bytes(head), order);
}

// Raises ValueError unless `head` is the beginning of a safetensors file of `file_bytes`. Returns how many bytes of it
// must be there: more than there are when it is too short to tell.
uint64_t CheckSafetensors(const py::bytes& head, uint64_t file_bytes) {
  const std::string bytes = head;
  return Call([&]() -> StatusOr<uint64_t> {
    CAIRN_ASSIGN_OR_RETURN(const uint64_t length, SafetensorsHeaderBytes(bytes, file_bytes));
    if (bytes.size() < length) return length;
    CAIRN_RETURN_IF_ERROR(ReadSafetensorsHeader(bytes, file_bytes).status());
    return length;
  });
}

std::string WhyNoCuda() {
  const Status status = [&] {
    const py::gil_scoped_release released;
    return gpu::CudaAvailable();
  }();
  return std::string(status.message());
}

// Empty: tensors on the device are saved from where they are.
std::string WhyNotSavedFrom(int device) {
  const py::gil_scoped_release released;
  return std::string(SaverOf(device).status().message());
}

}  // namespace

void PyWeights::Close() {
  if (weights_ == nullptr) return;
  const py::gil_scoped_release released;  // the end of a lease may be an RPC
  weights_.reset();
  session_.reset();
}

const client::Weights& PyWeights::get() const {
  if (weights_ == nullptr) Raise(absl::FailedPreconditionError("these weights have been closed"));
  return *weights_;
}

void DefineWeights(py::module_& module) {
  using py::arg;
  py::class_<PyWeights>(module, "Weights")
      .def("key",
           [](const PyWeights& weights) {
             const CheckpointKey& key = weights.get().checkpoint();
             return py::make_tuple(key.job, key.step, key.attempt, key.revision);
           })
      .def("objects", [](const PyWeights& weights) { return weights.get().index().objects; })
      .def("tensors",
           [](const PyWeights& weights) {
             py::list tensors;
             for (const client::IndexedTensor& tensor : weights.get().index().tensors) {
               tensors.append(py::make_tuple(tensor.name, tensor.dtype,
                                             py::tuple(py::cast(tensor.shape)),
                                             tensor.parts.size()));
             }
             return tensors;
           })
      .def("close", &PyWeights::Close);
  py::class_<PyStream>(module, "WeightStream")
      .def(py::init<const PyWeights&, int, const std::vector<std::string>&, const py::sequence&,
                    const py::object&, std::optional<uintptr_t>, bool, uint64_t,
                    std::optional<size_t>, size_t, const std::string&, bool>(),
           py::kw_only(), arg("weights"), arg("device"), arg("names"), arg("cuts"), arg("place"),
           arg("caller"), arg("views"), arg("bucket_bytes"), arg("ahead"), arg("threads"),
           arg("check"), arg("ring"))
      .def("next", &PyStream::Next)
      .def("stats", &PyStream::Stats)
      .def("close", &PyStream::Close);
  module.def("safetensors_head", &SafetensorsHead, arg("entries"), arg("metadata"));
  module.def("check_safetensors", &CheckSafetensors, arg("head"), arg("file_bytes"));
  module.def("why_no_cuda", &WhyNoCuda);
  module.def("why_not_saved_from", &WhyNotSavedFrom, arg("device"));
  module.attr("HOST_DEVICE") = kHostDevice;
}

}  // namespace cairn::python
