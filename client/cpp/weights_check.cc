#include "client/cpp/weights_check.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cpp/process.h"
#include "client/cpp/weights.h"
#include "client/cpp/weights_index.h"
#include "common/fd.h"
#include "common/json_entries.h"
#include "common/safetensors.h"

namespace cairn::client {
namespace {

// What is wrong with the bytes themselves; other errors are why they could not be had.
bool IsOfTheWeights(const Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status);
}

// Those that do not match their checksums.
StatusOr<std::vector<uint64_t>> BadBlocks(OpenObject* object) {
  CAIRN_ASSIGN_OR_RETURN(const Mapping room, Mapping::Anonymous(kBlockBytes));
  const std::vector<uint32_t>& crcs = object->info().block_crcs;
  std::vector<uint64_t> bad;
  for (uint64_t block = 0; block < crcs.size(); ++block) {
    uint32_t crc = 0;
    const Status read = object->ReadUnchecked(block, room.data(), &crc);
    if (!read.ok() && !absl::IsDataLoss(read)) return read;
    if (!read.ok() || crc != crcs[block]) bad.push_back(block);
  }
  return bad;
}

// The entries that have bytes in the block.
std::vector<std::string> TensorsIn(uint64_t block, const SafetensorsHeader& header) {
  const uint64_t begin = block * kBlockBytes;
  std::vector<std::string> names;
  for (const TensorEntry& entry : header.tensors) {
    if (entry.begin < begin + kBlockBytes && begin < entry.end) names.push_back(Quoted(entry.name));
  }
  return names;
}

class Checker {
 public:
  // Every block, and the header.
  Status AddObject(const std::string& name, OpenObject* object) {
    const auto found = [&](absl::string_view what) {
      check_.wrong.push_back(absl::StrCat("object ", Quoted(name), ": ", what));
    };
    check_.bytes += object->info().length;
    const Status verified = object->Verify();
    if (!verified.ok() && !absl::IsDataLoss(verified)) return verified;
    std::vector<uint64_t> bad;
    if (!verified.ok()) {
      CAIRN_ASSIGN_OR_RETURN(bad, BadBlocks(object));
      if (bad.empty()) found(verified.message());
    }
    StatusOr<SafetensorsHeader> header = ReadHeader(object);
    if (!header.ok() && !IsOfTheWeights(header.status())) return header.status();
    for (const uint64_t block : bad) {
      const std::string place =
          absl::StrCat("block ", block, " of ", object->info().block_crcs.size());
      const auto names = header.ok() ? TensorsIn(block, *header) : std::vector<std::string>();
      found(absl::StrCat(place, " does not match its checksum",
                         names.empty() ? "" : ", in which lie bytes of ",
                         absl::StrJoin(names, ", ")));
    }
    if (absl::IsInvalidArgument(header.status())) found(header.status().message());
    if (header.ok()) {
      headers_.push_back({name, *std::move(header)});
    } else {
      left_out_.push_back(Quoted(name));
    }
    return absl::OkStatus();
  }

  void CannotOpen(const std::string& name, const Status& why) {
    check_.wrong.push_back(absl::StrCat("object ", Quoted(name), ": ", why.message()));
    left_out_.push_back(Quoted(name));
  }

  // The index, and that every tensor is whole.
  WeightsCheck Finish(uint64_t objects) && {
    check_.objects = objects;
    const WeightsIndex index = BuildIndex();
    check_.tensors = index.tensors.size();
    if (!left_out_.empty()) {
      check_.wrong.push_back(absl::StrCat("whether every tensor is whole is not known without ",
                                          absl::StrJoin(left_out_, ", ")));
      return std::move(check_);
    }
    for (const IndexedTensor& tensor : index.tensors) {
      if (const Status whole = CheckWhole(tensor); !whole.ok()) {
        check_.wrong.emplace_back(whole.message());
      }
    }
    return std::move(check_);
  }

 private:
  // Of all objects or, where they do not go together, of those that go with the ones before them.
  WeightsIndex BuildIndex() {
    StatusOr<WeightsIndex> all = BuildWeightsIndex(headers_);
    if (all.ok()) return *std::move(all);
    std::vector<WeightsObject> agree;
    WeightsIndex index;
    for (const WeightsObject& object : headers_) {
      agree.push_back(object);
      StatusOr<WeightsIndex> with = BuildWeightsIndex(agree);
      if (with.ok()) {
        index = *std::move(with);
        continue;
      }
      check_.wrong.emplace_back(with.status().message());
      left_out_.push_back(Quoted(object.name));
      agree.pop_back();
    }
    return index;
  }

  WeightsCheck check_;
  std::vector<WeightsObject> headers_;
  std::vector<std::string> left_out_;  // of the index
};

}  // namespace

StatusOr<WeightsCheck> CheckWeights(
    const std::vector<std::string>& objects,
    absl::FunctionRef<StatusOr<std::unique_ptr<OpenObject>>(const std::string& name)> open,
    absl::FunctionRef<void(uint64_t bytes)> checked) {
  WeightsCheck check;
  const Status status = Contain([&]() -> Status {
    Checker checker;
    uint64_t done = 0;
    for (const std::string& name : objects) {
      const StatusOr<std::unique_ptr<OpenObject>> object = open(name);
      if (absl::IsDataLoss(object.status())) {
        checker.CannotOpen(name, object.status());
        continue;
      }
      CAIRN_RETURN_IF_ERROR(object.status());
      CAIRN_RETURN_IF_ERROR(checker.AddObject(name, object->get()));
      done += (*object)->info().length;
      checked(done);
    }
    check = std::move(checker).Finish(objects.size());
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return check;
}

}  // namespace cairn::client
