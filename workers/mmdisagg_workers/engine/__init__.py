"""The serving process of an engine role: stock vLLM, and what is added to it by its own extension points.

main, settings, model_facts, start_errors   the command: checks before vLLM starts, exit codes
plugin, parent_death, quiet_nixl            in every process of the worker
guard, guard_rules, embeds_payload          middleware: stage token, what the role answers
info                                        endpoint: what the worker serves
media, fetch_guard                          media connector: pictures by URL, tensors by description
encoder_cache                               encoder-cache connectors, made of
  embedding_store, media_report, token_prompts, embedding_metrics
worker_extension                            additions to vLLM's worker class, made of
  weights, worker_cores
"""
