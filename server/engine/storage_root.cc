#include "server/engine/storage_root.h"

#include "absl/strings/str_cat.h"

namespace cairn::engine {

StorageRoot::Change StorageRoot::On(const event::StorageSeen& event) {
  if (!event.root.ok()) return Away(std::string(event.root.status().message()));
  const RootIdentity& seen = *event.root;
  if (!root_.id.empty() && root_.id != seen.id) {
    return Away(absl::StrCat("another storage stands at the root, with the identity ", seen.id,
                             "; this node's has ", root_.id));
  }
  Change change;
  change.same = root_.instance == seen.instance;
  change.left = mode_.storage_here && !change.same;
  change.came = !mode_.storage_here || !change.same;
  if (change.left) {
    mode_.storage_here = false;
    mode_.storage_problem = "another directory with its marker took its place";
    out_.Log(Severity::kWarning,
             absl::StrCat("storage: ", mode_.storage_problem, "; what is in it is read anew"));
  }
  if (root_.id.empty() || !change.same) {
    root_ = {seen.id, seen.instance};
    out_.Say(root_);
  }
  return change;
}

StorageRoot::Change StorageRoot::Away(const std::string& problem) {
  Change change;
  if (mode_.storage_problem == problem) return change;
  out_.Log(
      Severity::kWarning,
      absl::StrCat("storage is away, nothing counts as persisted until it is back: ", problem));
  if (mode_.storage_here || mode_.storage_problem.empty()) out_.Count("storage_losses");
  mode_.storage_here = false;
  mode_.storage_problem = problem;
  change.left = true;
  return change;
}

void StorageRoot::Came() {
  if (!mode_.storage_problem.empty()) out_.Log(Severity::kInfo, "storage is back");
  mode_.storage_here = true;
  mode_.storage_problem.clear();
}

void StorageRoot::Snapshot(std::vector<Fact>* facts) const {
  if (!root_.id.empty()) facts->push_back(root_);
}

}  // namespace cairn::engine
