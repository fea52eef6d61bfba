#include "server/node/fetch_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/transport/transport.h"

namespace cairn::node {
namespace {

Status CheckRegions(const std::vector<std::shared_ptr<const ObjectEntry>>& entries,
                    const engine::peer::GrantAnswer& answer) {
  if (answer.regions.size() != entries.size()) {
    return absl::DataLossError(
        absl::StrCat("regions: ", answer.regions.size(), " of ", entries.size(), " objects"));
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i]->length > 0 && answer.regions[i].descriptor.empty()) {
      return absl::DataLossError(absl::StrCat("regions: none of \"", entries[i]->name, "\""));
    }
  }
  if (answer.token.size() != transport::GrantToken{}.size()) {
    return absl::DataLossError(absl::StrCat("token: ", answer.token.size(), " bytes"));
  }
  return absl::OkStatus();
}

// Each object at the next whole page.
StatusOr<std::vector<ExtentRef>> Place(const engine::action::Fetch& fetch,
                                       const std::vector<ObjectEntry>& objects) {
  std::vector<ExtentRef> extents;
  extents.reserve(objects.size());
  uint64_t offset = 0;
  for (const ObjectEntry& object : objects) {
    // No object's length comes near the end of the numbers (DecodeManifest).
    const uint64_t length = (object.length + kPageBytes - 1) / kPageBytes * kPageBytes;
    if (length > fetch.slab_bytes - offset) {
      return absl::FailedPreconditionError(absl::StrCat("slab_bytes: \"", object.name, "\" needs ",
                                                        length, " bytes at ", offset, " of ",
                                                        fetch.slab_bytes));
    }
    extents.push_back({fetch.slab, offset, length});
    offset += length;
  }
  return extents;
}

StatusOr<std::vector<PlannedBlock>> BlocksOf(const std::vector<ObjectEntry>& objects) {
  std::vector<PlannedBlock> blocks;
  for (size_t i = 0; i < objects.size(); ++i) {
    const ObjectEntry& object = objects[i];
    if (object.block_bytes > transport::kMaxReadBytes) {
      return absl::FailedPreconditionError(absl::StrCat("block_bytes: \"", object.name, "\" has ",
                                                        object.block_bytes, ", more than ",
                                                        transport::kMaxReadBytes));
    }
    for (size_t b = 0; b < object.block_crcs.size(); ++b) {
      const uint64_t offset = uint64_t{object.block_bytes} * b;
      const uint64_t length = std::min<uint64_t>(object.block_bytes, object.length - offset);
      blocks.push_back(
          {static_cast<uint32_t>(i), static_cast<uint32_t>(length), offset, object.block_crcs[b]});
    }
  }
  return blocks;
}

}  // namespace

StatusOr<FetchPlan> PlanFetch(const engine::action::Fetch& fetch,
                              const engine::peer::GrantAnswer& answer) {
  FetchPlan plan;
  plan.digest = ManifestDigest(answer.manifest);
  if (!fetch.digest.empty() && plan.digest != fetch.digest) {
    return absl::NotFoundError(
        absl::StrCat("the manifest has digest ", plan.digest, ", not ", fetch.digest));
  }
  if (answer.manifest.size() > fetch.manifest_bytes) {
    return absl::FailedPreconditionError(absl::StrCat("manifest_bytes: ", answer.manifest.size(),
                                                      " is above ", fetch.manifest_bytes));
  }
  CAIRN_ASSIGN_OR_RETURN(Manifest manifest, DecodeManifest(answer.manifest));
  if (manifest.Part() != fetch.part) {
    return absl::NotFoundError(absl::StrCat("the manifest is of ", manifest.Part().DebugString(),
                                            ", not of ", fetch.part.DebugString()));
  }
  if (manifest.owner_uid != fetch.uid) {
    return absl::PermissionDeniedError(
        absl::StrCat("the part is uid ", manifest.owner_uid, "'s, not uid ", fetch.uid, "'s"));
  }
  CAIRN_ASSIGN_OR_RETURN(std::vector<ExtentRef> extents, Place(fetch, manifest.objects));
  CAIRN_ASSIGN_OR_RETURN(plan.blocks, BlocksOf(manifest.objects));
  plan.table = TableOf(std::move(manifest), std::move(extents));
  CAIRN_RETURN_IF_ERROR(CheckRegions(plan.table->entries, answer));
  return plan;
}

Status CheckSource(const FetchPlan& plan, const engine::peer::GrantAnswer& answer) {
  const std::string digest = ManifestDigest(answer.manifest);
  if (digest != plan.digest) {
    return absl::NotFoundError(
        absl::StrCat("the manifest has digest ", digest, ", not ", plan.digest));
  }
  return CheckRegions(plan.table->entries, answer);
}

}  // namespace cairn::node
