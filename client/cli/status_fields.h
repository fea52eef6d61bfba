// A status page (NodeStatus of proto/cairn.thrift as JSON) field by field, and what the pages about a node
// and about one job share.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/format.h"
#include "client/cli/render.h"

namespace cairn::cli {

// A daemon of another version may leave fields out or add some: a field that is missing reads as 0 or
// empty.
inline int64_t Number(const Json& object, const char* field) {
  const auto found = object.find(field);
  if (found == object.end()) return 0;
  if (found->is_number()) return found->get<int64_t>();
  return 0;
}
inline uint64_t Bytes(const Json& object, const char* field) {
  return static_cast<uint64_t>(std::max<int64_t>(0, Number(object, field)));
}
inline std::string Text(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}
inline const Json& List(const Json& object, const char* field) {
  static const Json kEmpty = Json::array();
  const auto found = object.find(field);
  return found != object.end() && found->is_array() ? *found : kEmpty;
}
inline int64_t StepField(const Json& object, const char* field) {
  return object.contains(field) ? Number(object, field) : kNoStep;
}
inline std::string StepText(int64_t step) { return step == kNoStep ? "-" : absl::StrCat(step); }

// "every 10 steps", "newest"; "-" where the page says nothing of it.
std::string PersistText(const Json& job);
// A title and a table below what `text` has; nothing if the table is empty.
void Section(std::string* text, const std::string& title, const Table& table);
Table SessionsTable(const Json& status, int64_t now_unix_ms);

// What the page says of a job in the ring: of the whole ring, where Number and the like of the job's entry
// are about this node alone.
struct RingJob {
  bool known = false;           // the page says something of it
  int64_t latest = kNoStep;     // as every node of the ring answers it
  int64_t protect = kNoStep;    // the newest that has its replicas, or is in storage
  int64_t target = kNoStep;     // the one that all nodes secure now
  int64_t replicas = 0;         // of the latest: copies − 1 of its least replicated part
  int64_t asked = 0;            // by the job's policy
  int64_t age_ms = 0;           // so long ago the ring said all this
  std::string why;              // the latest moved back, or the target cannot be secured
  std::vector<int64_t> silent;  // ranks that were not heard
};
RingJob RingJobOf(const Json& job);
std::string ReplicasText(const RingJob& ring);  // "1 of 2"
// "self", "up", "silent for 12 s"; what a newer daemon calls it, as it is.
std::string MemberStateText(const Json& member);
// This node is a member of a ring of more than one.
bool InRing(const Json& status);
// Lines of `status` about the ring; empty for a node alone.
std::string RingLines(const Json& status);
// Lines of `status JOB` about it; none for a node alone.
void RingSheet(const Json& job, std::vector<std::pair<std::string, std::string>>* lines);

}  // namespace cairn::cli
