// Borrowers keep a slab in four ways: a writable or a read-only description, open or only mapped.
// Both questions must see each of them, and its end.
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <memory>

#include "server/cache/cache.h"
#include "server/cache/slab.h"

namespace cairn::cache {
namespace {

constexpr LeaseId kLease = 7;
constexpr LeaseId kOtherLease = 8;

Status Expect(bool expected, const StatusOr<bool>& answer, absl::string_view question,
              absl::string_view when) {
  if (!answer.ok())
    return Annotate(answer.status(), absl::StrCat("self-test: ", question, " ", when));
  if (*answer == expected) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("self-test: on this kernel ", question, " says ", *answer ? "yes" : "no", " ",
                   when, "; Cairn cannot tell when memory may be reused and refuses to start"));
}

Status ExpectTaken(Slab* slab, absl::string_view when) {
  CAIRN_RETURN_IF_ERROR(Expect(false, slab->Probe(), "the probe (\"nobody has it\")", when));
  CAIRN_RETURN_IF_ERROR(Expect(false, slab->LeaseOpen(kOtherLease), "another lease's lock", when));
  return Expect(true, slab->LeaseOpen(kLease), "the lease's lock", when);
}

Status ExpectFree(Slab* slab, absl::string_view when) {
  CAIRN_RETURN_IF_ERROR(Expect(true, slab->Probe(), "the probe (\"nobody has it\")", when));
  return Expect(false, slab->LeaseOpen(kLease), "the lease's lock", when);
}

Status TestBorrower(Slab* slab, bool writable) {
  CAIRN_RETURN_IF_ERROR(ExpectFree(slab, "before it is lent"));
  CAIRN_ASSIGN_OR_RETURN(UniqueFd lent, slab->Lend(kLease, writable));
  CAIRN_RETURN_IF_ERROR(ExpectTaken(slab, "while its descriptor is open"));
  {
    CAIRN_ASSIGN_OR_RETURN(
        const Mapping mapping,
        Mapping::Map(lent.get(), 0, kPageBytes, PROT_READ | (writable ? PROT_WRITE : 0),
                     writable ? MAP_SHARED : MAP_PRIVATE));
    lent.Reset();
    CAIRN_RETURN_IF_ERROR(ExpectTaken(slab, "while it is mapped and its descriptor closed"));
  }
  return ExpectFree(slab, "after it was unmapped");
}

}  // namespace

Status SelfTest() {
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Slab> slab,
                         Slab::Make("cairn-self-test", kPageBytes));
  CAIRN_RETURN_IF_ERROR(slab->Populate(0, kPageBytes));
  // Stands for the keeper, which holds a dup; it must not count as a borrower.
  const UniqueFd held(::fcntl(slab->fd(), F_DUPFD_CLOEXEC, 0));
  if (!held.valid()) return ErrnoStatus(errno, "self-test: dup of a slab");
  CAIRN_RETURN_IF_ERROR(TestBorrower(slab.get(), /*writable=*/true));
  return TestBorrower(slab.get(), /*writable=*/false);
}

}  // namespace cairn::cache
