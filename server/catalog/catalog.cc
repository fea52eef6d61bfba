#include "server/catalog/catalog.h"

#include "absl/strings/str_cat.h"

namespace cairn::catalog {
namespace {

std::string CheckpointIdentity(const CheckpointKey& key) {
  return absl::StrCat(key.job, "/", key.step, "/", key.attempt, "/", key.revision);
}

struct Identify {
  std::string operator()(const JobRow& row) const { return absl::StrCat("job/", row.job); }
  std::string operator()(const AttemptRow& row) const {
    return absl::StrCat("attempt/", row.job, "/", row.attempt);
  }
  std::string operator()(const LineRow& row) const {
    const LineRecord& record = row.record;
    return absl::StrCat("line/", record.job, "/", LineRecordName(record.number, record.kind));
  }
  std::string operator()(const ForgottenRow& row) const {
    return absl::StrCat("forgotten/", row.job);
  }
  std::string operator()(const AuthorRow& row) const { return absl::StrCat("author/", row.name); }
  std::string operator()(const PartRow& row) const {
    return absl::StrCat("part/", CheckpointIdentity(row.part.checkpoint), "/", row.part.writer);
  }
  std::string operator()(const HolderRow& row) const {
    return absl::StrCat("holder/", CheckpointIdentity(row.part.checkpoint), "/", row.part.writer,
                        "/", row.holder);
  }
  std::string operator()(const LeftRow& row) const {
    return absl::StrCat("left/", CheckpointIdentity(row.checkpoint), "/", row.holder);
  }
  // What is said last of a step counts, be it that it has vanished.
  std::string operator()(const VanishedRow& row) const {
    return absl::StrCat("step/", CheckpointIdentity(row.checkpoint));
  }
  std::string operator()(const StepRow& row) const {
    return absl::StrCat("step/", CheckpointIdentity(row.checkpoint));
  }
};

}  // namespace

std::string RowIdentity(const Row& row) { return std::visit(Identify{}, row); }

}  // namespace cairn::catalog
