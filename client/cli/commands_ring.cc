// What changes the ring, or this node's place in it: ring, ring resize, drain.
#include <CLI/CLI.hpp>
#include <memory>
#include <ostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/context.h"
#include "client/cli/format.h"
#include "client/cli/render.h"

namespace cairn::cli {
namespace {

constexpr absl::Duration kLookEvery = absl::Milliseconds(500);

Json ToJson(const client::RingInfo& ring) {
  Json seats = Json::array();
  for (const client::RingInfo::Seat& seat : ring.seats) {
    seats.push_back({{"rank", seat.rank},
                     {"taken", seat.taken},
                     {"incarnation", seat.incarnation},
                     {"address", seat.address},
                     {"beat_age_ms", seat.beat_age_ms}});
  }
  return {{"epoch", ring.epoch},
          {"size", ring.seats.size()},
          {"rank", ring.rank},
          {"problem", ring.problem},
          {"seats", seats}};
}

Status ShowRing(Context* context) {
  CAIRN_ASSIGN_OR_RETURN(auto session, context->Connect());
  CAIRN_ASSIGN_OR_RETURN(const client::RingInfo ring, session->Ring());
  std::ostream& out = *context->console.out;
  if (context->settings.json) {
    out << Dump(ToJson(ring));
    return absl::OkStatus();
  }
  out << "epoch " << ring.epoch << ", " << ring.seats.size() << " ranks; this node "
      << (ring.rank < 0 ? std::string("has none") : absl::StrCat("has rank ", ring.rank)) << "\n";
  if (!ring.problem.empty()) out << ring.problem << "\n";
  Table table({"RANK", "ADDRESS", "INCARNATION", "LAST BEAT"}, {0, 2});
  for (const client::RingInfo::Seat& seat : ring.seats) {
    table.Row({absl::StrCat(seat.rank), seat.taken ? seat.address : "empty",
               absl::StrCat(seat.incarnation),
               seat.beat_age_ms < 0
                   ? "never"
                   : absl::StrCat(HumanDuration(absl::Milliseconds(seat.beat_age_ms)), " ago")});
  }
  out << table.Render();
  return absl::OkStatus();
}

Status Resize(Context* context, int size) {
  CAIRN_ASSIGN_OR_RETURN(auto session, context->Connect());
  CAIRN_ASSIGN_OR_RETURN(const int64_t epoch, session->ResizeRing(size));
  std::ostream& out = *context->console.out;
  if (context->settings.json) {
    out << Dump(Json{{"size", size}, {"epoch", epoch}});
  } else {
    out << "the ring has " << size << " ranks from epoch " << epoch << " on\n";
  }
  return absl::OkStatus();
}

struct Drained {
  bool safe = false;        // nothing is only here, and nothing is being written
  bool given_back = false;  // it had a rank of the catalog's, and has none now
  std::string state;
};

Drained DrainedOf(const Json& status) {
  Drained drained;
  drained.state = status.value("state", "");
  drained.safe = absl::StartsWith(drained.state, "draining: nothing is only here") &&
                 status.value("writing_bytes", int64_t{0}) == 0;
  drained.given_back = absl::StrContains(drained.state, "it has given its rank back");
  return drained;
}

Status Drain(Context* context, bool undo, bool wait) {
  std::ostream& out = *context->console.out;
  CAIRN_ASSIGN_OR_RETURN(auto session, context->Connect());
  if (undo) return session->Drain(false);
  // Where the members stand in the catalog the rank is given back, too.
  const bool has_rank = session->Ring().ok();
  const absl::Time deadline = absl::Now() + context->settings.timeout;
  std::string shown;
  Drained drained;
  bool asked = false;
  do {
    const StatusOr<Json> status = AskStatus(session.get());
    if (status.ok()) {
      drained = DrainedOf(*status);
      if (drained.given_back || (drained.safe && !has_rank)) {
        out << (drained.given_back ? "drained: the rank is given back; the daemon may be stopped\n"
                                   : "drained: nothing is only here; the daemon may be stopped\n");
        return absl::OkStatus();
      }
      if (asked && drained.state != shown) out << drained.state << "\n";
      shown = drained.state;
      // Each time, for the first may have been UNAVAILABLE; said again it changes nothing.
      if (const Status begun = session->Drain(true); !begun.ok() && !absl::IsUnavailable(begun)) {
        return begun;
      }
      asked = true;
      if (!wait) return absl::OkStatus();
      out.flush();
    } else if (!absl::IsUnavailable(status.status())) {
      return status.status();
    }
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("drain: still under way, and goes on: ", drained.state));
    }
  } while (context->console.pause(kLookEvery));
  return absl::OkStatus();
}

}  // namespace

void AddRingCommands(CLI::App* app, Context* context) {
  auto* ring = app->add_subcommand(
      "ring", "Who has which rank, where the members stand in the catalog; `ring resize N`");
  auto* resize = ring->add_subcommand("resize", "Give the ring another number of ranks");
  auto size = std::make_shared<int>(0);
  resize->add_option("N", *size, "1 to 1024; a rank that goes must be empty")->required();
  resize->callback([=] { context->action = [=] { return Resize(context, *size); }; });
  ring->callback([=] {
    if (!resize->parsed()) context->action = [=] { return ShowRing(context); };
  });

  auto* drain = app->add_subcommand(
      "drain", "Take this node out of service: admit nothing, secure what only it has");
  auto undo = std::make_shared<bool>(false);
  auto no_wait = std::make_shared<bool>(false);
  drain->add_flag("--undo", *undo, "take it back into service");
  drain->add_flag("--no-wait", *no_wait, "only begin; `cairn status` shows how far it is");
  drain->footer(
      "What lies on this node alone goes to storage, or to other members. Where the members stand "
      "in\n"
      "the catalog the node then gives its rank back, and a spare takes it. Only root, or the "
      "user\n"
      "who runs the daemon, may.\n\n"
      "Example:\n  cairn drain --timeout 10m");
  drain->callback([=] { context->action = [=] { return Drain(context, *undo, !*no_wait); }; });
}

}  // namespace cairn::cli
