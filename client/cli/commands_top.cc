// `top`: the ring as it works, again and again.
#include <CLI/CLI.hpp>
#include <ostream>
#include <utility>

#include "client/cli/context.h"
#include "client/cli/render.h"

namespace cairn::cli {
namespace {

struct TopArguments {
  std::string interval = "2s";
  bool once = false;
};

// What the page before showed, for rates.
struct Seen {
  Json status = Json::object();
  MonotonicNanos at = 0;
};

Status ShowTop(Context* context, Seen* seen) {
  CAIRN_ASSIGN_OR_RETURN(auto session, context->Connect());
  CAIRN_ASSIGN_OR_RETURN(Json status, AskStatus(session.get()));
  const MonotonicNanos now = context->clock->Now();
  TopPage page;
  page.before = std::move(seen->status);
  page.between = absl::Nanoseconds(now - seen->at);
  page.now_unix_ms = context->clock->UnixMillis();
  const Screen screen = context->console.screen ? context->console.screen() : Screen();
  page.columns = screen.columns;
  page.lines = screen.lines;
  page.status = std::move(status);
  *context->console.out << (context->settings.json ? Dump(TopToJson(page)) : RenderTop(page));
  *seen = {std::move(page.status), now};
  return absl::OkStatus();
}

Status Top(Context* context, const TopArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration interval,
                         ParseInterval("interval", arguments.interval));
  Seen seen;
  const auto show = [&] { return ShowTop(context, &seen); };
  return arguments.once ? show() : ShowAgain(context, interval, show);
}

}  // namespace

void AddTopCommand(CLI::App* app, Context* context) {
  auto* top = app->add_subcommand(
      "top", "The ring as it works: members, what is being read, what is not yet safe");
  auto arguments = std::make_shared<TopArguments>();
  top->add_option("--interval", arguments->interval, "between two pages, until Ctrl-C")
      ->type_name("SECONDS")
      ->capture_default_str();
  top->add_flag("--once", arguments->once, "one page; it has no rates, which take two");
  top->footer(
      "All of it is what this node knows. A member's memory is shown for this node alone; rates "
      "are\n"
      "of what this node reads. A narrow terminal shows fewer columns.\n\n"
      "Examples:\n"
      "  cairn top\n"
      "  cairn top --interval=500ms\n"
      "  cairn top --once -o json");
  top->callback([=] { context->action = [=] { return Top(context, *arguments); }; });
}

}  // namespace cairn::cli
