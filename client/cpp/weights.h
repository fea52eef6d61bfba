// The weights of one step: its safetensors objects, each opened under a lease, and the index of their tensors.
#pragma once

#include <map>
#include <memory>
#include <string>
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
  //   NOT_FOUND         there is no such step, or not all of its writers have committed
  //   INVALID_ARGUMENT  it has no safetensors object, or one with a header that lies; names it, and what is wrong
  //   as Session::Open
  static StatusOr<std::unique_ptr<Weights>> Open(Session* session, const CheckpointRef& checkpoint,
                                                 absl::Duration timeout = absl::ZeroDuration());
  // Of all of a step's safetensors objects, opened by the caller. INVALID_ARGUMENT as Open.
  static StatusOr<std::unique_ptr<Weights>> Of(CheckpointKey checkpoint,
                                               std::vector<std::shared_ptr<OpenObject>> objects);

  const CheckpointKey& checkpoint() const { return checkpoint_; }
  const WeightsIndex& index() const { return index_; }
  // Those of the index, in its order.
  const std::vector<std::shared_ptr<OpenObject>>& objects() const { return objects_; }
  // What the metadata of all objects say alike, such as {"format": "pt"}; kPartsKey, which is of one object, is not in it.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  Weights() = default;

  CheckpointKey checkpoint_;
  WeightsIndex index_;
  std::vector<std::shared_ptr<OpenObject>> objects_;
  std::map<std::string, std::string> metadata_;
};

// The names of those of kind safetensors. INVALID_ARGUMENT when there is none; it says what there is instead.
StatusOr<std::vector<std::string>> SafetensorsAmong(const CheckpointKey& checkpoint,
                                                    const std::vector<ObjectInfo>& objects);

// Reads the blocks that it lies in, verified. INVALID_ARGUMENT as ReadSafetensorsHeader.
StatusOr<SafetensorsHeader> ReadHeader(OpenObject* object);

}  // namespace cairn::client
