# A real Broadway with broadway_rabbitmq: what the dispatch policy makes of its processors.
#
# Two producers, 25 processors that each ask for one message, 25 messages of 300 ms each, as
# `../python/broadway_test.py` imitates it. All that can be busy at once are: with one message per
# processor the whole takes 300 ms, with one processor that got two it takes 600 ms.
#
# AMQP is the broker's address. `broadway`, `broadway_rabbitmq` and `amqp` must be on the code path.
# Prints a line of JSON for each run.

defmodule Pipeline do
  use Broadway

  @work_ms 300

  def start(queue, collector) do
    [host, port] = String.split(System.get_env("AMQP", "127.0.0.1:5672"), ":")

    producer =
      {BroadwayRabbitMQ.Producer,
       queue: queue,
       connection: [host: host, port: String.to_integer(port)],
       qos: [prefetch_count: 50],
       on_failure: :reject_and_requeue}

    Broadway.start_link(__MODULE__,
      name: __MODULE__,
      context: collector,
      producer: [module: producer, concurrency: 2],
      processors: [default: [concurrency: 25, max_demand: 1]]
    )
  end

  @impl true
  def handle_message(_processor, message, collector) do
    Process.sleep(@work_ms)
    send(collector, {:done, self(), message.data})
    message
  end
end

defmodule Run do
  @messages 25
  @processors 25

  def all do
    {:ok, _} = Application.ensure_all_started(:broadway_rabbitmq)
    Logger.configure(level: :error)
    [host, port] = String.split(System.get_env("AMQP", "127.0.0.1:5672"), ":")
    {:ok, connection} = AMQP.Connection.open(host: host, port: String.to_integer(port))
    {:ok, channel} = AMQP.Channel.open(connection)
    fill_first = [{"x-cloverleaf-dispatch", :longstr, "fill-first"}]
    policies = [{"default", []}, {"fill-first", fill_first}]

    for {policy, arguments} <- policies, round <- 1..5 do
      {ms, idle} = one(channel, "broadway-#{policy}-#{round}", arguments)
      IO.puts(~s({"dispatch":"#{policy}","round":#{round},"ms":#{ms},"idle":#{idle}}))
    end
  end

  defp one(channel, queue, arguments) do
    {:ok, _} = AMQP.Queue.declare(channel, queue, durable: true, arguments: arguments)
    {:ok, pipeline} = Pipeline.start(queue, self())
    wait_for_consumers(channel, queue, 2)
    start = System.monotonic_time(:millisecond)
    for n <- 1..@messages, do: AMQP.Basic.publish(channel, "", queue, "#{n}")
    done = for _ <- 1..@messages, do: next()
    ms = System.monotonic_time(:millisecond) - start
    Broadway.stop(pipeline)
    %{message_count: 0} = AMQP.Queue.status(channel, queue) |> elem(1)
    {:ok, _} = AMQP.Queue.delete(channel, queue)
    @messages = done |> Enum.uniq_by(fn {_, body} -> body end) |> length()
    busy = done |> Enum.uniq_by(fn {processor, _} -> processor end) |> length()
    {ms, @processors - busy}
  end

  defp next do
    receive do
      {:done, processor, body} -> {processor, body}
    after
      30_000 -> raise "a message did not come"
    end
  end

  defp wait_for_consumers(channel, queue, number) do
    case AMQP.Queue.status(channel, queue) do
      {:ok, %{consumer_count: ^number}} ->
        :ok

      {:ok, _} ->
        Process.sleep(20)
        wait_for_consumers(channel, queue, number)
    end
  end
end

Run.all()
