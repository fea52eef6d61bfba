// Any bytes: whatever is accepted as a path names something that keys.h accepts, and no name ever
// leads out of its directory.
#include <cstdint>
#include <cstdlib>

#include "common/keys.h"
#include "common/layout.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (absl::string_view job : {"", "job"}) {
    const auto path = cairn::ParseCairnPath(bytes, job);
    if (!path.ok()) continue;
    if (!cairn::ValidateJob(path->job).ok()) std::abort();
    if (!path->latest && !cairn::ValidateStep(path->step).ok()) std::abort();
    if (!path->name.empty() && !cairn::ValidateObjectName(path->name).ok()) std::abort();
    if (path->name.find("..") == 0 && path->name.size() == 2) std::abort();
    if (("/" + path->name + "/").find("/../") != std::string::npos) std::abort();
  }
  cairn::CheckpointKey checkpoint;
  if (cairn::ParseCheckpointDirectory(bytes, &checkpoint) && checkpoint.step < 0) std::abort();
  const cairn::Step step = cairn::ParseStepDirectory(bytes);
  if (step != cairn::kNoStep && cairn::StepDirectory(step) != bytes) std::abort();
  return 0;
}
