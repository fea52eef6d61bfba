// The weights of one step: its safetensors objects, each opened under a lease, and the index of their tensors.
#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "client/cpp/session.h"
#include "client/cpp/weights_index.h"
#include "common/keys.h"
#include "common/status.h"

namespace cairn::client {

// Thread-safe. While it lives the step's bytes stay, whatever becomes of the step.
class Weights {
 public:
  // Step kNoStep: the latest one. Reads every object's header.
  //   NOT_FOUND         there is no such step
  //   INVALID_ARGUMENT  it has no safetensors object, or one with a header that lies; names it, and what is wrong
  //   as Session::Open
  static StatusOr<std::unique_ptr<Weights>> Open(Session* session, const CheckpointRef& checkpoint,
                                                 absl::Duration timeout = absl::ZeroDuration());

  const CheckpointKey& checkpoint() const { return checkpoint_; }
  const WeightsIndex& index() const { return index_; }
  // Those of the index, in its order.
  const std::vector<std::shared_ptr<OpenObject>>& objects() const { return objects_; }

 private:
  Weights() = default;

  CheckpointKey checkpoint_;
  WeightsIndex index_;
  std::vector<std::shared_ptr<OpenObject>> objects_;
};

}  // namespace cairn::client
