from dinnet.cli import main

main()
